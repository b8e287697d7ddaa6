"""Learns from a model's chat template how the model writes tool calls."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import product

from ....runtime.errors import RequestError
from ..text.chat_template import ChatTemplate
from .call_arguments import flexible
from .call_format import Parameters, ToolFormat
from .families import FORMATS
from .response_template import read_response_template

_NAME = "sample_function"
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "A sample.",
        "parameters": {
            "type": "object",
            "properties": {
                "second": {"type": "object", "description": "Some numbers."},
                "first": {"type": "boolean", "description": "A choice."},
            },
            "required": ["second", "first"],
        },
    },
}
_ARGUMENTS = {"second": {"x": 1, "y": 2}, "first": True}
_IDS = (("a1b2c3d4e", "b2c3d4e5f"), (f"functions.{_NAME}:0", f"functions.{_NAME}:1"))
"""Mistral's templates want nine letters and digits."""
_SEPARATORS = re.compile(r'"x"(\s*:\s*)1(\s*,\s*)"y"')
_UNWRITTEN_ID = r'(?:\s*,\s*"id"\s*:\s*"[^"]*")?'  # templates may print an id that models do not write
_FINGERPRINTS = (
    ("<|channel|>commentary", "harmony"),
    ("[TOOL_CALLS]", "mistral"),
    ("｜DSML｜", "dsml"),
    ("<|tool_calls_section_begin|>", "kimi"),
    ("<｜tool▁calls▁begin｜>", "deepseek_v31"),
    ("<minimax:tool_call>", "minimax"),
    ("<seed:tool_call>", "seed_oss"),
    ("<|tool_call_start|>", "lfm2"),
    ("<|tool_call>", "gemma"),
    ("<start_function_call>", "function_gemma"),
    ("<function_calls>", "olmo3"),
    ("<TOOLCALL>", "nemotron"),
    ("functools[", "phi4_mini"),
    ("<tool_calls>", "hunyuan"),
    ("<arg_key>", "glm"),
    ("<function=", "qwen_xml"),
    ("<tool_call>", "hermes"),
    ("<|tool_call|>", "granite"),
    ("[func_name1(", "pythonic"),
    ("<|python_start|>", "pythonic"),
    ("<|python_tag|>", "llama_json"),
    ('"parameters": ', "llama_json"),
)
"""A text in a template, and the format that such models most likely have."""


@lru_cache(8)
def detect_format(template: ChatTemplate | None) -> ToolFormat:
    """The format of calls in the template's samples, or else the one that the checkpoint declares, or else
    Hermes', which most models know."""
    if template is None or not template.support(with_tools=True).tools:
        return FORMATS["hermes"]
    declared = read_response_template(template.response_template).tools
    source = template.source([_TOOL])
    likely = next((name for mark, name in _FINGERPRINTS if mark in source), "hermes")
    tagged = [format for format in FORMATS.values() if format.tag_of(format.form) is not None]
    known = [FORMATS[likely], *tagged]
    if declared is not None:
        known = [format for format in known if declared.tags[0].startswith(format.tags[0])]
        known.append(declared)
    samples = list(_render_samples(template))
    found = (read_sample(format, text) for format in known for text in samples)
    return next(filter(None, found), declared or FORMATS[likely])


def read_sample(format: ToolFormat, text: str) -> ToolFormat | None:
    """The format as the rendered sample writes it; None if it does not. White space may differ."""
    form, number = format.form, format.call_id
    name = _NAME if number is None else rf"{_NAME}{re.escape(number.mark)}[^<\[]*"
    before, after, tail = (_loosen(part) for part in (*form.head, form.tail))
    between = "(?!)" if form.between is None else rf"\s*{re.escape(form.between.strip())}\s*"
    pattern = (
        rf"(?P<prefix>{_loosen(form.prefix)})(?P<before>{before}){name}(?P<after>{after})"
        rf"(?P<given>{_match_arguments(format)}){_UNWRITTEN_ID}(?P<tail>{tail})"
        rf"(?:(?P<between>{between}){before}{name}{after}{_match_arguments(format)}{_UNWRITTEN_ID}{tail})?"
        rf"(?P<suffix>{_loosen(form.suffix)})"
    )
    found = list(re.finditer(pattern, text, re.DOTALL))
    if not found:
        return None
    call = found[-1]
    learned = form._replace(
        prefix=call["prefix"],
        head=(call["before"], call["after"]),
        tail=call["tail"],
        suffix=call["suffix"],
        between=form.between if call["between"] is None else call["between"],
    )
    bodies = format.between_bodies
    if bodies is not None and len(found) > 1:
        gap = text[found[-2].end() : call.start()]
        bodies = gap if not gap.strip() else bodies
    separators = _SEPARATORS.search(call["given"])
    return format._replace(
        form=learned,
        parameters=None if format.parameters is None else _read_parameters(format.parameters, call["given"]),
        separators=(separators[2], separators[1]) if separators else format.separators,
        between_bodies=bodies,
    )


def _loosen(text: str) -> str:
    """A regex of the text with any white space where it has some, and around the marks of JSON in it."""
    if text.endswith("["):
        before = flexible(text[:-1].rstrip())
        return (rf"{before}\s*" if before else "") + r"\[\s*"
    if text.startswith(("]", "}")):
        return rf"\s*{flexible(text)}"
    if '"' not in text:
        return flexible(text)
    words = re.split(r"\s*([{}:,])\s*|\s+", text)
    written = r"\s*".join(re.escape(word or "") for word in words if word is not None)
    written = written if text[:1].isspace() else written.removeprefix(r"\s*")
    return re.sub("arguments|parameters", "(?:arguments|parameters)", written)


def _match_arguments(format: ToolFormat) -> str:
    """A regex of the sample's arguments."""
    syntax = format.parameters
    if syntax is None:
        return r"\{.*?\}.*?\}"
    before, after = map(flexible, syntax.name)
    after = rf"(?:{flexible(syntax.typed)})" if syntax.typed else after
    values = {"second": r"\{[^{}]*\}", "first": "(?i:true)"}
    written = [f"{before}{name}{after}{value}{flexible(syntax.end)}" for name, value in values.items()]
    orders = (written, written[::-1])
    return f"(?:{'|'.join(flexible(syntax.between).join(order) for order in orders)})"


def _read_parameters(syntax: Parameters, given: str) -> Parameters:
    """The syntax with the white space, the words and the order of the sample's arguments."""
    before, after = syntax.name
    found = re.search(
        rf"({flexible(before)})second({flexible(syntax.typed or after)})\{{.*?\}}({flexible(syntax.end)})",
        given,
        re.DOTALL,
    )
    is_sorted = given.index("first") < given.index("second")
    learned = syntax._replace(is_python="True" in given, is_sorted=is_sorted)
    if found is None or syntax.typed:
        return learned
    return learned._replace(name=(found[1], found[2]), end=found[3])


def _render_samples(template: ChatTemplate) -> Iterator[str]:
    """Conversations that end with two calls, or with one if the template takes no two, for each kind of
    ids."""
    user = {"role": "user", "content": "Hello"}
    for ids, content in product(_IDS, ("", None)):
        calls = [
            {"id": id, "type": "function", "function": {"name": _NAME, "arguments": _ARGUMENTS}} for id in ids
        ]
        for each in (calls, calls[:1]):
            assistant = {"role": "assistant", "content": content, "tool_calls": each}
            with contextlib.suppress(RequestError):
                yield template.render([user, assistant], tools=[_TOOL], add_generation_prompt=False)
                break
