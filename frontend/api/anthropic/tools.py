"""Anthropic's tools, `tool_choice` and ids of calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.conversation import tool_definitions
from ...core.messages import FunctionDefinition, Tool
from ...core.requested_tools import CallsWanted
from ...core.tool_choice import find_tool
from ...core.validation import check_word, invalid_field, missing_field
from .protocol import TOOL_CHOICES, PromptRequest, ToolDefinition

_PATHS = ("name", "input_schema")
_WIRE, _TEMPLATE = "toolu_", "call_"
_BARE_LENGTH = 9  # characters of an id without prefix, as Mistral's templates want it


def definitions(tools: Sequence[ToolDefinition] | None) -> list[dict[str, Any]] | None:
    """The tools as the chat template prints them; None without tools. Raises `RequestError`."""
    found = [_function(tool, f"tools[{index}]") for index, tool in enumerate(tools or ())]
    return tool_definitions(found, *_PATHS)


def _function(tool: ToolDefinition, where: str) -> Tool:
    if tool.type not in (None, "custom"):
        raise invalid_field(
            f"{where}.type",
            f"is {tool.type!r}, a tool that only Anthropic's servers or models know: define a "
            "tool of your own, with a name and an input_schema, and run it in the client",
            "unsupported_parameter",
        )
    if tool.allowed_callers is not None and "direct" not in tool.allowed_callers:
        raise invalid_field(
            f"{where}.allowed_callers",
            "lacks 'direct', but only the model itself can call a tool: add it",
            "unsupported_parameter",
        )
    if tool.input_schema is None:
        raise missing_field(f"{where}.input_schema")
    function = FunctionDefinition(
        name=tool.name or "",
        description=tool.description,
        parameters=tool.input_schema,
        strict=tool.strict,
    )
    return Tool(type="function", function=function)


def calls_wanted(request: PromptRequest, tools: Sequence[dict[str, Any]] | None) -> CallsWanted:
    """The calls that `tool_choice` allows. Raises `RequestError` for a choice that does not fit `tools`."""
    choice = request.tool_choice
    kind = "auto" if choice is None else choice.type
    check_word("tool_choice.type", kind, TOOL_CHOICES)
    if kind in ("any", "tool") and not tools:
        problem = f"is {kind!r}, but there are no tools: add tools, or leave tool_choice out"
        raise invalid_field("tool_choice.type", problem)
    if not tools or kind == "none":
        return CallsWanted("none")
    several = choice is None or not choice.disable_parallel_tool_use
    names = [tool["function"]["name"] for tool in tools]
    params = {name: f"tools[{index}].input_schema" for index, name in enumerate(names)}
    if kind == "auto":
        return CallsWanted("auto", tools, several, params)
    if kind == "tool":
        if choice is None or not choice.name:
            raise missing_field("tool_choice.name")
        tools = [find_tool(choice.name, tools, "tool_choice.name", "is")]
    return CallsWanted("required", tools, several, params)


def wire_id(id: str) -> str:
    """Converts the id of a call from the form for chat templates to Anthropic's."""
    return _WIRE + id.removeprefix(_TEMPLATE)


def template_id(id: str) -> str:
    """The inverse of `wire_id`. An id without Anthropic's prefix, as from another API, stays as it is."""
    if not id.startswith(_WIRE):
        return id
    bare = id.removeprefix(_WIRE)
    return bare if len(bare) == _BARE_LENGTH else _TEMPLATE + bare
