"""Builds structural tags for tool calls in the model family's own format, with each tool's schema."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .call_format import Form, ToolFormat
from .parameter_grammar import SAYS_NOTHING, ParameterValues, find_problem
from .schema_mistakes import describe_mistake

Tool = dict[str, Any]
Format = dict[str, Any]

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
    if not any(map(calls.can_enforce, tools)):
        return {"type": "any_text"}
    again = several and format.between_bodies is not None
    found: Format = {"type": "triggered_tags", "triggers": [], "tags": [], "stop_after_first": not again}
    bare: list[Format] = []
    for form in format.forms:
        trigger = format.tag_of(form)
        known = [tool for tool in tools if trigger or calls.can_enforce(tool)]
        if known and trigger:
            found["triggers"].append(trigger)
        (found["tags"] if trigger else bare).extend(calls.build_bodies(form, known, several=several))
    if bare:
        found |= {"at_start": bare, "leads": ("",) if format.bracket.startswith(" ") else _LEADS}
    return found


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
        return self._find_problem(tool) is None

    def build_alone(self, tools: Sequence[Tool], *, several: bool) -> Format:
        """One call or several, without text around them."""
        separator = self._format.between_bodies
        return {
            "type": "tags_with_separator",
            "tags": self.build_bodies(self._format.form, tools, several=several),
            "separator": separator or "",
            "at_least_one": True,
            "stop_after_first": not (several and separator is not None),
        }

    def build_bodies(self, form: Form, tools: Sequence[Tool], *, several: bool) -> list[Format]:
        """The tags of all bodies of calls in one form: one for each tool, or one that takes several calls."""
        if not tools or form.between is None:
            return [self._build_call(form, tool, form.prefix, form.suffix) for tool in tools]
        calls = {
            "type": "tags_with_separator",
            "tags": [self._build_call(form, tool, "", "") for tool in tools],
            "separator": form.between,
            "at_least_one": True,
            "stop_after_first": not several,
        }
        return [_make_tag(form.prefix, calls, form.suffix)]

    def _build_call(self, form: Form, tool: Tool, prefix: str, suffix: str) -> Format:
        arguments, number = self._build_arguments(tool), self._format.call_id
        if number is None:
            return _make_tag(prefix + form.begin(_name(tool)), arguments, form.tail + suffix)
        before, after = form.head
        numbered = [{"type": "regex", "pattern": number.pattern}, {"type": "const_string", "value": after}]
        content = {"type": "sequence", "elements": [*numbered, arguments]}
        return _make_tag(prefix + before + _name(tool) + number.mark, content, form.tail + suffix)

    def _build_arguments(self, tool: Tool) -> Format:
        function, syntax = tool["function"], self._format.parameters
        if "input_format" in function:
            return self._build_input(function)
        refuse = self._must_enforce or function.get("strict")
        if syntax is None:
            return self._json(_move_reference(_parameters(tool)), tool, "refuse" if refuse else "object")
        if (problem := self._find_problem(tool)) is None:
            values = ParameterValues(syntax, self._format.separators, _name(tool), is_strict=bool(refuse))
            return values.build_members(_parameters(tool))
        if self._must_enforce:
            raise _make_error(tool, problem)
        return {"type": "any_text"}

    def _json(self, schema: Any, tool: Tool, otherwise: str) -> Format:
        fields = {"separators": self._format.separators, "function": _name(tool), "otherwise": otherwise}
        return {"type": "json_schema", "json_schema": schema, **fields}

    def _find_problem(self, tool: Tool) -> str | None:
        syntax = self._format.parameters
        return None if syntax is None else find_problem(syntax, _parameters(tool))

    def _build_input(self, function: dict[str, Any]) -> Format:
        """The arguments of a tool whose only one is the text `input`. The function has the format of that
        text, as `input_format` inside the quotes of JSON, as `input_text` without quotes."""
        _, colon = self._format.separators
        syntax, text = self._format.parameters, function["input_format"]
        before, after = f'{{"input"{colon}"', '"}'
        if syntax is not None:
            quote = '"' if syntax.quote is None else syntax.quote
            before = f"{syntax.name[0]}input{syntax.name[1]}{quote}"
            after = quote + syntax.end
            text = text if syntax.quote is None else function["input_text"]
        ends = [{"type": "const_string", "value": each} for each in (before, after)]
        return {"type": "sequence", "elements": [ends[0], text, ends[1]]}


def check_unenforceable(format: ToolFormat, tools: Sequence[Tool]) -> None:
    """Raises `ToolError` for a tool that this format can't enforce, if the tool is strict or its schema is
    invalid."""
    for tool in tools:
        syntax = format.parameters
        problem = None if syntax is None else find_problem(syntax, _parameters(tool))
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
    said = {name: parameters[name] for name in parameters.keys() - SAYS_NOTHING - {"type"}}
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
