"""Builds structural tags for tool calls in the model family's own format, with each tool's schema."""

from __future__ import annotations

import keyword
from collections.abc import Sequence
from typing import Any

from .schema_mistakes import describe_mistake
from .tool_formats import ToolFormat

Tool = dict[str, Any]
Format = dict[str, Any]

_AS_KEYWORDS = {"type", "properties", "required", "additionalProperties", "$defs", "definitions"}
_SAYS_NOTHING = {"title", "description", "examples", "default", "$schema", "$id", "$comment", "strict"}
_NO_ARGUMENTS: dict[str, Any] = {"properties": {}, "required": [], "additionalProperties": False}
_LEADS = ("", "\n\n")  # text before the first call; the line breaks follow reasoning


class ToolError(ValueError):
    """A tool that can't be served. `function` is its name."""

    def __init__(self, function: str, message: str) -> None:
        super().__init__(message)
        self.function = function


def build_required_calls(format: ToolFormat, tools: Sequence[Tool], *, several: bool) -> Format:
    """The format of a reply that is a call of one of the tools, or several calls.

    Raises `ToolError` for a tool whose parameters can't be enforced in this format. The tools' names are all
    different.
    """
    return _Calls(format, must_enforce=True).build_alone(tools, several=several)


def build_calls_or_answer(format: ToolFormat, tools: Sequence[Tool], answer: Any, *, several: bool) -> Format:
    """The format of a reply that is one call, several calls, or an answer that matches `answer`."""
    calls = _Calls(format, must_enforce=False)
    known = [tool for tool in tools if calls.can_enforce(tool)]
    either = {"type": "or", "elements": [answer, calls.build_alone(known, several=several)]}
    return either if known else answer


def build_optional_calls(format: ToolFormat, tools: Sequence[Tool], *, several: bool) -> Format:
    """The format of any text that may have calls in it. Each call has the form and arguments of its tool."""
    calls = _Calls(format, must_enforce=False)
    known = [tool for tool in tools if calls.can_enforce(tool)]
    again = several and format.syntax.between_tags is not None
    found: Format = {"type": "triggered_tags", "triggers": [], "tags": [], "stop_after_first": not again}
    if not known:
        return {"type": "any_text"}
    match format.name:
        case "llama_json":
            tagged = [calls.build_tag(tool, "<|python_tag|>", "") for tool in known]
            bare = [calls.build_tag(tool, "", "") for tool in known]
            found |= {"triggers": [tag["begin"].rstrip() for tag in tagged], "tags": tagged}
            return found | {"at_start": bare, "leads": _LEADS}
        case "pythonic":
            tag, closing = "<|python_start|>", "<|python_end|>"
            block = calls.build_block(known, tag + format.prefix, format.suffix + closing, several=several)
            bare = [calls.build_block(known, format.prefix, format.suffix, several=several)]
            return found | {"triggers": [tag], "tags": [block], "at_start": bare, "leads": _LEADS}
        case "mistral":
            block = calls.build_block(known, format.prefix, format.suffix, several=several)
            return found | {"triggers": [format.tag], "tags": [block]}
    tags = [calls.build_tag(tool, format.prefix, format.suffix) for tool in known]
    return found | {"triggers": [format.tag], "tags": tags}


def find_partly_enforced(left_out: Sequence[str]) -> frozenset[str]:
    """The names of tools that are not enforced in full. `left_out` are paths that begin with the tool's
    name."""
    return frozenset(path.partition("#")[0] for path in left_out)


def find_enforced(tools: Sequence[Tool], format: ToolFormat, loosened: frozenset[str]) -> frozenset[str]:
    """The names of tools whose calls `build_optional_calls` constrains."""
    calls = _Calls(format, must_enforce=False)
    return frozenset(_name(tool) for tool in tools if calls.can_enforce(tool)) - loosened


class _Calls:
    def __init__(self, format: ToolFormat, *, must_enforce: bool) -> None:
        self._format = format
        self._must_enforce = must_enforce

    def can_enforce(self, tool: Tool) -> bool:
        return self._format.name != "pythonic" or _find_keyword_problem(tool) is None

    def build_tag(self, tool: Tool, prefix: str, suffix: str) -> Format:
        begin = prefix + self._format.begin(_name(tool))
        return _make_tag(begin, self._build_arguments(tool), self._format.tail + suffix)

    def build_alone(self, tools: Sequence[Tool], *, several: bool) -> Format:
        """One call or several, without text around them."""
        if self._format.between is not None:
            return self.build_block(tools, self._format.prefix, self._format.suffix, several=several)
        return {
            "type": "tags_with_separator",
            "tags": [self.build_tag(tool, self._format.prefix, self._format.suffix) for tool in tools],
            "separator": self._format.syntax.between_tags or "",
            "at_least_one": True,
            "stop_after_first": not (several and self._format.syntax.between_tags is not None),
        }

    def build_block(self, tools: Sequence[Tool], prefix: str, suffix: str, *, several: bool) -> Format:
        """One call or several between a prefix and a suffix."""
        calls = {
            "type": "tags_with_separator",
            "tags": [self.build_tag(tool, "", "") for tool in tools],
            "separator": self._format.between,
            "at_least_one": True,
            "stop_after_first": not several,
        }
        return _make_tag(prefix, calls, suffix)

    def _build_arguments(self, tool: Tool) -> Format:
        function, parameters = tool["function"], _parameters(tool)
        if "input_format" in function:
            return self._build_input(function["input_format"])
        refuse = self._must_enforce or function.get("strict")
        fields = {"separators": self._format.separators, "function": function["name"]}
        if self._format.name != "pythonic":
            otherwise = "refuse" if refuse else "object"
            schema = _move_reference(parameters)
            return {"type": "json_schema", "json_schema": schema, "otherwise": otherwise, **fields}
        if (problem := _find_keyword_problem(tool)) is not None:
            raise _make_error(tool, problem)
        otherwise = "refuse" if refuse else "value"
        return {"type": "keywords", "members": _list_members(parameters), "otherwise": otherwise, **fields}

    def _build_input(self, quoted: Format) -> Format:
        """The arguments of a tool whose only one is the text `input`. `quoted` is the format of that text
        inside its quotes."""
        _, colon = self._format.separators
        is_python = self._format.name == "pythonic"
        before, after = ('input="', '"') if is_python else (f'{{"input"{colon}"', '"}')
        ends = [{"type": "const_string", "value": text} for text in (before, after)]
        return {"type": "sequence", "elements": [ends[0], quoted, ends[1]]}


def check_unenforceable(format: ToolFormat, tools: Sequence[Tool]) -> None:
    """Raises `ToolError` for a tool that this format can't enforce, if the tool is strict or its schema is
    invalid."""
    for tool in tools:
        problem = _find_keyword_problem(tool) if format.name == "pythonic" else None
        if problem is None:
            continue
        if (mistake := describe_mistake(_parameters(tool))) is not None:
            raise ToolError(_name(tool), f"The parameters of the function {_name(tool)!r}: {mistake}.")
        if tool["function"].get("strict"):
            raise _make_error(tool, problem)


def _make_error(tool: Tool, problem: str) -> ToolError:
    name = _name(tool)
    return ToolError(
        name,
        f"The call of the function {name!r} can't be enforced in this model's way of calling because of "
        f"{problem}.",
    )


def _make_tag(begin: str, content: Format, end: str) -> Format:
    return {"type": "tag", "begin": begin, "content": content, "ends": [end]}


def _name(tool: Tool) -> str:
    return str(tool["function"]["name"])


def _parameters(tool: Tool) -> dict[str, Any]:
    """The parameters with their type, which may be missing or allow null too.

    A function that declares nothing takes no arguments: its JSON schema would allow any, and models would
    write some.
    """
    parameters = tool["function"].get("parameters") or {}
    said = {name: parameters[name] for name in parameters.keys() - _SAYS_NOTHING - {"type"}}
    if said.items() <= _NO_ARGUMENTS.items():
        return {**parameters, "type": "object", **_NO_ARGUMENTS}
    return {**parameters, "type": "object"}


def _move_reference(parameters: dict[str, Any]) -> dict[str, Any]:
    """The schema with its reference moved into `allOf`, because older drafts ignore a type beside a
    reference."""
    if "$ref" not in parameters or "$schema" not in parameters or "allOf" in parameters:
        return parameters
    others = {name: value for name, value in parameters.items() if name != "$ref"}
    return {**others, "allOf": [{"$ref": parameters["$ref"]}]}


def _find_keyword_problem(tool: Tool) -> str | None:
    """The reason why a tool's arguments can't be written as keywords of a Python call, if any."""
    parameters = _parameters(tool)
    unknown = parameters.keys() - _AS_KEYWORDS - _SAYS_NOTHING
    if unknown or parameters.get("type") != "object":
        return f"the keyword {min(unknown, default='type')!r} of its parameters"
    properties = parameters.get("properties", {})
    if not isinstance(properties, dict):
        return "its parameters' 'properties', which are no object"
    if not _are_names(parameters.get("required", [])):
        return "its parameters' 'required', which is no list of names"
    missing = [name for name in parameters.get("required", []) if name not in properties]
    wrong = [name for name in properties if not name.isidentifier() or keyword.iskeyword(name)]
    if missing or wrong:
        return f"the parameter {[*missing, *wrong][0]!r}"
    inner = [properties, parameters.get("$defs"), parameters.get("definitions")]
    return "a reference" if any(_refers_outside(each) for each in inner) else None


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _refers_outside(value: Any) -> bool:
    """Whether a reference leads outside of `$defs` and `definitions`, which each property's schema gets."""
    if isinstance(value, list):
        return any(map(_refers_outside, value))
    if not isinstance(value, dict):
        return False
    reference = value.get("$ref", "#/$defs/")
    inside = isinstance(reference, str) and reference.startswith(("#/$defs/", "#/definitions/"))
    return not inside or any(map(_refers_outside, value.values()))


def _list_members(parameters: dict[str, Any]) -> list[dict[str, Any]]:
    shared = {name: parameters[name] for name in ("$defs", "definitions") if name in parameters}
    required = parameters.get("required", [])
    return [
        {
            "name": name,
            "json_schema": {**schema, **shared} if isinstance(schema, dict) else schema,
            "required": name in required,
        }
        for name, schema in parameters.get("properties", {}).items()
    ]
