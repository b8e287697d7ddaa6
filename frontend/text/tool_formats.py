"""How a model writes a tool call, learned from its chat template."""

from __future__ import annotations

import json
import re
from typing import Any, Literal, NamedTuple

from ...runtime.errors import RequestError
from ...runtime.messages import GrammarSpec
from .chat_template import ChatTemplate
from .tokenizer import Tokenizer

Dialect = Literal["hermes", "llama_json", "pythonic", "mistral"]
Tools = list[dict[str, Any]]

TAGS: dict[Dialect, tuple[str, ...]] = {
    "hermes": ("<tool_call>",),
    "llama_json": ("<|python_tag|>",),
    "pythonic": ("<|python_start|>", "<|python_tag|>"),
    "mistral": ("[TOOL_CALLS]",),
}
CLOSING_TAGS: dict[Dialect, str] = {"hermes": "</tool_call>", "pythonic": "<|python_end|>"}

_DECIDES_TYPE = {"type", "$ref", "anyOf", "oneOf", "allOf", "const", "enum"}
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
_SAMPLE_CALL = re.compile(
    rf'\{{\s*"name"\s*:\s*"{_SAMPLE_NAME}"\s*,\s*"(?P<key>arguments|parameters)"\s*:\s*'
    r'\{\s*"first"(?P<colon>\s*:\s*)1(?P<comma>\s*,\s*)"second"\s*:\s*2\s*\}'
    r'(?:\s*,\s*"id"\s*:\s*"[^"]*")?\s*\}'
)


class ToolFormat(NamedTuple):
    """A call is `opening + prefix + {"name": …, arguments_key: …} + suffix` (in the pythonic dialect
    only when its form is imposed).

    `opening` ends with a special token, which no grammar can produce: a prompt whose reply must be a
    call ends with it. `separators` are the item and key separators of the JSON.
    """

    name: Dialect
    opening: str
    prefix: str
    suffix: str
    separators: tuple[str, str]
    arguments_key: str

    def shown_special(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Special tokens that the detokenizer must not skip when a request has tools."""
        tags = (*TAGS[self.name], CLOSING_TAGS.get(self.name, ""), "[ARGS]", "[CALL_ID]")
        ids = (tokenizer.token_id(tag) for tag in tags)
        return frozenset(token for token in ids if token is not None) & tokenizer.special_tokens


_DEFAULTS: dict[Dialect, ToolFormat] = {
    "hermes": ToolFormat("hermes", "", "<tool_call>\n", "\n</tool_call>", (", ", ": "), "arguments"),
    "llama_json": ToolFormat("llama_json", "", "", "", (", ", ": "), "parameters"),
    "pythonic": ToolFormat("pythonic", "", "", "", (", ", ": "), "parameters"),
    "mistral": ToolFormat("mistral", "[TOOL_CALLS]", " [", "]", (", ", ": "), "arguments"),
}


def default_format(dialect: Dialect) -> ToolFormat:
    """The dialect as its models were trained on it."""
    return _DEFAULTS[dialect]


def detect_format(template: ChatTemplate | None) -> ToolFormat:
    """Hermes, which most models know, when the template says nothing of tool calls."""
    if template is None:
        return _DEFAULTS["hermes"]
    dialect = _dialect(template.source([_SAMPLE_TOOL]))
    text = _sample_rendering(template)
    found = list(_SAMPLE_CALL.finditer(text))
    if not found:
        return _DEFAULTS[dialect]
    call = found[-1]
    before, after = text[: call.start()], text[call.end() :]
    opening, prefix = _split_behind_special(_from_last_tag(before, dialect), template.special_texts)
    return ToolFormat(
        dialect,
        opening,
        prefix,
        _suffix(after, dialect, template.special_texts),
        (call["comma"], call["colon"]),
        call["key"],
    )


def call_grammar(format: ToolFormat, tools: Tools, named: str | None) -> GrammarSpec:
    """What a reply must match that has to call a tool: `named`, or any if that is None."""
    functions = [tool["function"] for tool in tools]
    chosen = [function for function in functions if named is None or function["name"] == named]
    if not chosen:
        known = ", ".join(function["name"] for function in functions) or "none"
        raise RequestError(
            f'tool_choice names the function "{named}", which is not among the tools ({known}).',
            param="tool_choice",
        )
    definitions: dict[str, Any] = {}
    calls = [_call_schema(format.arguments_key, function, definitions) for function in chosen]
    schema: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
    if definitions:
        schema = {**schema, "$defs": definitions}
    return GrammarSpec(
        "json_schema", json.dumps(schema), "tools", format.prefix, format.suffix, format.separators
    )


def _dialect(source: str) -> Dialect:
    if "[TOOL_CALLS]" in source:
        return "mistral"
    if "<tool_call>" in source:
        return "hermes"
    if "[func_name1(" in source or "<|python_start|>" in source:
        return "pythonic"
    if "<|python_tag|>" in source or '"parameters": ' in source:
        return "llama_json"
    return "hermes"


def _sample_rendering(template: ChatTemplate) -> str:
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


def _from_last_tag(text: str, dialect: Dialect) -> str:
    starts = [text.rfind(tag) for tag in TAGS[dialect]]
    return text[max(starts) :] if max(starts) >= 0 else ""


def _split_behind_special(text: str, special: frozenset[str]) -> tuple[str, str]:
    end = max((text.rfind(token) + len(token) for token in special if token in text), default=0)
    return text[:end], text[end:]


def _suffix(text: str, dialect: Dialect, special: frozenset[str]) -> str:
    """What follows a call, up to its closing tag or the special token that ends the turn."""
    call, closing_tag, _ = text.partition(CLOSING_TAGS.get(dialect, "\0"))
    specials = [text.find(token) for token in special if token in text]
    if not closing_tag and not specials:
        return _DEFAULTS[dialect].suffix
    return text[: min([len(call + closing_tag), *specials])]


def _call_schema(key: str, function: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    name = function["name"]
    arguments = function.get("parameters")
    if arguments is None:
        arguments = {"type": "object", "properties": {}, "additionalProperties": False}
    if not arguments.keys() & _DECIDES_TYPE:
        arguments = {"type": "object", **arguments}
    if '"$ref"' in json.dumps(arguments):
        definitions[name] = _rebased(arguments, f"#/$defs/{name}")
        arguments = {"$ref": f"#/$defs/{name}"}
    return {
        "type": "object",
        "properties": {"name": {"const": name}, key: arguments},
        "required": ["name", key],
        "additionalProperties": False,
    }


def _rebased(schema: Any, root: str) -> Any:
    """The schema with its own references pointing to where it will stand."""
    if isinstance(schema, list):
        return [_rebased(item, root) for item in schema]
    if not isinstance(schema, dict):
        return schema
    rebased = {key: _rebased(value, root) for key, value in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        rebased["$ref"] = root + reference[1:]
    return rebased
