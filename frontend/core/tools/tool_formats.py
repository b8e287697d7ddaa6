"""Learns from a model's chat template how the model writes tool calls."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ....runtime.errors import RequestError
from ..text.chat_template import ChatTemplate
from ..text.tokenizer import Tokenizer
from .call_syntax import SYNTAXES, Dialect, Syntax, parse_object

_SAMPLE_NAME = "sample_function"
_SAMPLE_TOOL = {
    "type": "function",
    "function": {
        "name": _SAMPLE_NAME,
        "description": "A sample.",
        "parameters": {
            "type": "object",
            "properties": {
                "first": {"type": "integer", "description": "A number."},
                "second": {"type": "integer", "description": "A number."},
            },
            "required": ["first", "second"],
        },
    },
}
_SAMPLE_ARGUMENTS = r'\{\s*"first"(?P<colon>\s*:\s*)1(?P<comma>\s*,\s*)"second"\s*:\s*2\s*\}'
_SAMPLE_CALL = re.compile(
    rf'(?P<before>\{{\s*"name"\s*:\s*"){_SAMPLE_NAME}(?P<after>"\s*,\s*"(?:arguments|parameters)"\s*:\s*)'
    rf'{_SAMPLE_ARGUMENTS}(?:\s*,\s*"id"\s*:\s*"[^"]*")?(?P<tail>\s*\}})'
)
_SAMPLE_NAMED_CALL = re.compile(
    rf"(?P<before>){_SAMPLE_NAME}(?P<after>(?:\[ARGS\])?){_SAMPLE_ARGUMENTS}(?P<tail>)"
)
_SPACED_PARTS = re.compile(r'(?P<text>"(?:[^"\\]|\\.)*")|\s*(?P<mark>[,:])\s*|\s+')
"""Matches a JSON string, or a separator with the white space around it."""


class ToolFormat(NamedTuple):
    """How calls are written: `prefix`, one or more calls with `between` between them, `suffix`. A call is the
    function's name between the parts of `head`, its arguments, and `tail`.

    Several calls may follow a prefix only if `between` is not None. `separators` are the item and key
    separators of the arguments.
    """

    name: Dialect
    prefix: str
    head: tuple[str, str]
    tail: str
    suffix: str
    between: str | None
    separators: tuple[str, str]

    def begin(self, function: str) -> str:
        """The text before a call's arguments."""
        before, after = self.head
        return f"{before}{json.dumps(function, ensure_ascii=False)[1:-1] if before else function}{after}"

    def write(self, calls: Iterable[tuple[str, str | Mapping[str, Any]]]) -> str:
        """The text of calls, each a name and its arguments. JSON text that is no object stays as it is."""
        bodies = [f"{self.begin(name)}{self._write_arguments(given)}{self.tail}" for name, given in calls]
        if self.between is not None:
            return f"{self.prefix}{self.between.join(bodies)}{self.suffix}"
        return (self.syntax.between_tags or "").join(f"{self.prefix}{body}{self.suffix}" for body in bodies)

    def _write_arguments(self, given: str | Mapping[str, Any]) -> str:
        item, key = self.separators
        found = parse_object(given) if isinstance(given, str) else given
        if self.name == "pythonic" and found is not None:
            members = (f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in found.items())
            return ", ".join(members)
        if not isinstance(given, str):
            return json.dumps(given, ensure_ascii=False, separators=self.separators)
        if found is None:
            return given

        def spaced(part: re.Match[str]) -> str:
            return part["text"] or {",": item, ":": key}.get(part["mark"], "")

        return _SPACED_PARTS.sub(spaced, given)

    @property
    def syntax(self) -> Syntax:
        return SYNTAXES[self.name]

    @property
    def tag(self) -> str | None:
        """The tag that begins the prefix."""
        return next((tag for tag in self.syntax.tags if self.prefix.startswith(tag)), None)

    def shown_special(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Special tokens that the detokenizer must not skip when a request has tools."""
        tags = (*self.syntax.tags, self.syntax.closing_tag, "[ARGS]", "[CALL_ID]")
        ids = (tokenizer.token_id(tag) for tag in tags)
        return frozenset(token for token in ids if token is not None) & tokenizer.special_tokens


_SPACED = (", ", ": ")
_ARGUMENTS = ('{"name": "', '", "arguments": ')
_PARAMETERS = ('{"name": "', '", "parameters": ')
DEFAULT_FORMATS: dict[Dialect, ToolFormat] = {
    "hermes": ToolFormat("hermes", "<tool_call>\n", _ARGUMENTS, "}", "\n</tool_call>", None, _SPACED),
    "llama_json": ToolFormat("llama_json", "", _PARAMETERS, "}", "", None, _SPACED),
    "pythonic": ToolFormat("pythonic", "[", ("", "("), ")", "]", ", ", _SPACED),
    "mistral": ToolFormat("mistral", "[TOOL_CALLS] [", _ARGUMENTS, "}", "]", ", ", _SPACED),
    "mistral_named": ToolFormat("mistral_named", "[TOOL_CALLS]", ("", "[ARGS]"), "", "", None, _SPACED),
}
"""The formats of calls on which the models of each dialect were trained."""


def detect_format(template: ChatTemplate | None) -> ToolFormat:
    """The template's format, or Hermes', which most models know, if the template has none."""
    if template is None or not template.support(with_tools=True).tools:
        return DEFAULT_FORMATS["hermes"]
    dialect = _detect_dialect(template.source([_SAMPLE_TOOL]))
    if dialect == "pythonic":
        return DEFAULT_FORMATS[dialect]
    text = _render_sample(template)
    found = list(_SAMPLE_CALL.finditer(text))
    if not found and dialect == "mistral":
        found = list(_SAMPLE_NAMED_CALL.finditer(text))
        dialect = "mistral_named" if found else dialect
    if not found:
        return DEFAULT_FORMATS[dialect]
    call = found[-1]
    prefix = _cut_before_last_tag(text[: call.start()], dialect)
    if not prefix and DEFAULT_FORMATS[dialect].prefix:
        return DEFAULT_FORMATS[dialect]
    return ToolFormat(
        dialect,
        prefix,
        (call["before"], call["after"]),
        call["tail"],
        _find_suffix(text[call.end() :], dialect, template.special_texts),
        DEFAULT_FORMATS[dialect].between,
        (call["comma"], call["colon"]),
    )


def _detect_dialect(source: str) -> Dialect:
    if "[TOOL_CALLS]" in source:
        return "mistral"
    if "<tool_call>" in source:
        return "hermes"
    if "[func_name1(" in source or "<|python_start|>" in source:
        return "pythonic"
    if "<|python_tag|>" in source or '"parameters": ' in source:
        return "llama_json"
    return "hermes"


def _render_sample(template: ChatTemplate) -> str:
    """A conversation that ends with a call; empty if the template can't write one."""
    arguments = {"first": 1, "second": 2}
    call = {
        "id": "a1b2c3d4e",  # Mistral's templates want nine letters and digits
        "type": "function",
        "function": {"name": _SAMPLE_NAME, "arguments": arguments},
    }
    user = {"role": "user", "content": "Hello"}
    for content in ("", None):
        assistant = {"role": "assistant", "content": content, "tool_calls": [call]}
        try:
            return template.render([user, assistant], tools=[_SAMPLE_TOOL], add_generation_prompt=False)
        except RequestError:
            continue
    return ""


def _cut_before_last_tag(text: str, dialect: Dialect) -> str:
    starts = [text.rfind(tag) for tag in SYNTAXES[dialect].tags]
    return text[max(starts) :] if max(starts) >= 0 else ""


def _find_suffix(text: str, dialect: Dialect, special: frozenset[str]) -> str:
    """The text after a call, up to its closing tag or the special token that ends the turn."""
    call, closing_tag, _ = text.partition(SYNTAXES[dialect].closing_tag or "\0")
    specials = [text.find(token) for token in special if token in text]
    if closing_tag:
        return call + closing_tag
    return text[: min(specials)] if specials else DEFAULT_FORMATS[dialect].suffix
