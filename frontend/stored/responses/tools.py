"""The tools of a request: functions, custom tools, the local shell, and namespaces of tools."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from ....runtime.errors import RequestError
from ...core.conversation import tool_definitions
from ...core.messages import FunctionDefinition, Tool
from ...core.text.quoted_grammar import QuotingError, quoted_lark, quoted_pattern
from ...core.validation import check_word, invalid_field, missing_field
from .protocol import TOOL_TYPES, ToolDefinition

Kind = Literal["function", "custom", "local_shell"]
LOCAL_SHELL = "local_shell"
MAX_GRAMMAR_CHARACTERS = 100_000
"""Maximum characters of the grammar of a custom tool's input."""
_SHELL_DESCRIPTION = "Runs a command on the user's machine and returns its output."
_SHELL_PARAMETERS: dict[str, object] = {
    "type": "object",
    "properties": {
        "command": {"type": "array", "items": {"type": "string"}, "minItems": 1},
        "working_directory": {"type": "string"},
        "timeout_ms": {"type": "integer", "minimum": 0},
    },
    "required": ["command"],
    "additionalProperties": False,
}
_INPUT_PARAMETERS: dict[str, object] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


class Called(NamedTuple):
    """What a call names: a tool of this kind, and the namespace that it is in."""

    kind: Kind
    name: str
    namespace: str | None


class OfferedTools(NamedTuple):
    """A request's tools.

    `printed` are the definitions that the chat template prints, None without tools. `callable` are the same
    definitions with the grammars of custom tools. `called` has each tool by its name in the prompt; `params`
    are the fields with the tools' schemas, for errors.
    """

    printed: list[dict[str, Any]] | None
    callable: list[dict[str, Any]]
    called: Mapping[str, Called]
    params: Mapping[str, str]


class _Placed(NamedTuple):
    """A tool and its path in the request, such as `tools[0].tools[1]`."""

    where: str
    tool: ToolDefinition
    namespace: str | None


def prompt_name(name: str, namespace: str | None) -> str:
    """A tool's name in the prompt."""
    return name if namespace is None else f"{namespace}.{name}"


def offered_tools(tools: Sequence[ToolDefinition] | None) -> OfferedTools:
    """Checks and converts a request's tools. Raises `RequestError` naming the tool that can't be served."""
    placed = list(_placed(tools or ()))
    printed = tool_definitions(
        [_as_function(each) for each in placed], "name", "parameters", [each.where for each in placed]
    )
    definitions = copy.copy(printed or [])
    for index, each in enumerate(placed):
        if (grammar := _grammar(each)) is not None:
            function = {**definitions[index]["function"], **grammar}
            definitions[index] = {**definitions[index], "function": function}
    names = [definition["function"]["name"] for definition in definitions]
    return OfferedTools(
        printed,
        definitions,
        {name: _describe_call(each) for name, each in zip(names, placed, strict=True)},
        {name: _param(each) for name, each in zip(names, placed, strict=True)},
    )


def _placed(tools: Sequence[ToolDefinition]) -> Iterator[_Placed]:
    for index, tool in enumerate(tools):
        where = f"tools[{index}]"
        _check_type(tool, where)
        if tool.type != "namespace":
            yield _Placed(where, tool, None)
            continue
        if not tool.name:
            raise missing_field(f"{where}.name")
        if not tool.tools:
            raise missing_field(f"{where}.tools")
        for place, inner in enumerate(tool.tools):
            check_word(f"{where}.tools[{place}].type", inner.type, ("function", "custom"))
            yield _Placed(f"{where}.tools[{place}]", inner, tool.name)


def _check_type(tool: ToolDefinition, where: str) -> None:
    if tool.type not in TOOL_TYPES:
        raise invalid_field(
            f"{where}.type",
            f"is {tool.type!r}, a tool that runs on OpenAI's servers: leave it out, or define a "
            "tool of the type 'function' and run it in the client",
            "unsupported_parameter",
        )


def _describe_call(placed: _Placed) -> Called:
    kind = placed.tool.type
    if kind == LOCAL_SHELL:
        return Called("local_shell", LOCAL_SHELL, None)
    return Called("custom" if kind == "custom" else "function", placed.tool.name or "", placed.namespace)


def _param(placed: _Placed) -> str:
    return f"{placed.where}.{'format' if placed.tool.type == 'custom' else 'parameters'}"


def _as_function(placed: _Placed) -> Tool:
    where, tool, namespace = placed
    if tool.type == LOCAL_SHELL:
        shell = FunctionDefinition(
            name=LOCAL_SHELL, description=_SHELL_DESCRIPTION, parameters=_SHELL_PARAMETERS
        )
        return Tool(type="function", function=shell)
    if not tool.name:
        raise missing_field(f"{where}.name")
    is_custom = tool.type == "custom"
    function = FunctionDefinition(
        name=prompt_name(tool.name, namespace),
        description=_described(tool) if is_custom else tool.description,
        parameters=_INPUT_PARAMETERS if is_custom else tool.parameters,
        strict=None if is_custom else tool.strict,
    )
    return Tool(type="function", function=function)


def _described(tool: ToolDefinition) -> str | None:
    """The description, with the grammar that the input must match."""
    format = tool.format
    if format is None or format.type != "grammar":
        return tool.description
    rule = f"The input matches this {format.syntax} grammar:\n{format.definition}"
    return f"{tool.description}\n\n{rule}" if tool.description else rule


def _grammar(placed: _Placed) -> dict[str, Any] | None:
    """The formats of a custom tool's input: `input_format` inside the quotes of a JSON string, `input_text`
    without quotes; None without a grammar."""
    format, where = placed.tool.format, f"{placed.where}.format"
    if placed.tool.type != "custom" or format is None:
        return None
    check_word(f"{where}.type", format.type, ("text", "grammar"))
    if format.type == "text":
        return None
    for name in ("syntax", "definition"):
        if not getattr(format, name):
            raise missing_field(f"{where}.{name}")
    check_word(f"{where}.syntax", format.syntax, ("lark", "regex"))
    return _quote_grammar(format.syntax or "", format.definition or "", f"{where}.definition")


def _quote_grammar(syntax: str, definition: str, param: str) -> dict[str, Any]:
    """The grammar of a custom tool's input, which most models write as the string of a JSON call.

    Returns formats of a structural tag. Raises `RequestError` naming `param`.
    """
    if len(definition) > MAX_GRAMMAR_CHARACTERS:
        raise invalid_field(
            param, f"has {len(definition)} characters, but may have at most {MAX_GRAMMAR_CHARACTERS}"
        )
    try:
        if syntax == "regex":
            quoted = {"type": "regex", "pattern": quoted_pattern(definition)}
            return {"input_format": quoted, "input_text": {"type": "regex", "pattern": definition}}
        quoted = {"type": "grammar", "grammar": quoted_lark(definition)}
        return {"input_format": quoted, "input_text": {"type": "grammar", "grammar": definition}}
    except QuotingError as error:
        raise RequestError(f"{param}: {error}.", param=param, code="invalid_grammar") from None
