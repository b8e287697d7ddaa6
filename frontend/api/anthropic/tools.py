"""Anthropic's tools and `tool_choice`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....runtime.errors import RequestError
from ...core.conversation import tool_definitions
from ...core.messages import FunctionDefinition, Tool
from ...core.requested_tools import CallsWanted
from ...core.validation import check_word, missing_field
from .protocol import TOOL_CHOICES, PromptRequest, ToolDefinition

_PATHS = ("name", "input_schema")


def definitions(tools: Sequence[ToolDefinition] | None) -> list[dict[str, Any]] | None:
    """The tools as the chat template prints them; None without tools. Raises `RequestError`."""
    found = [_function(tool, f"tools[{index}]") for index, tool in enumerate(tools or ())]
    return tool_definitions(found, *_PATHS)


def _function(tool: ToolDefinition, where: str) -> Tool:
    if tool.type not in (None, "custom"):
        raise RequestError(
            f"{where}.type is {tool.type!r}, a tool that only Anthropic's servers or models know: define a "
            "tool of your own, with a name and an input_schema, and run it in the client.",
            param=f"{where}.type",
            code="unsupported_parameter",
        )
    if tool.allowed_callers is not None and "direct" not in tool.allowed_callers:
        raise RequestError(
            f"{where}.allowed_callers lacks 'direct', but only the model itself can call a tool: add it.",
            param=f"{where}.allowed_callers",
            code="unsupported_parameter",
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
    """`tools` are the definitions of the request's tools. Raises `RequestError`."""
    choice = request.tool_choice
    kind = "auto" if choice is None else choice.type
    check_word("tool_choice.type", kind, TOOL_CHOICES)
    if kind in ("any", "tool") and not tools:
        problem = (
            f"tool_choice.type is {kind!r}, but there are no tools: add tools, or leave tool_choice out."
        )
        raise RequestError(problem, param="tool_choice.type", code="invalid_value")
    if not tools or kind == "none":
        return CallsWanted("none")
    several = choice is None or not choice.disable_parallel_tool_use
    names = [tool["function"]["name"] for tool in tools]
    params = {name: f"tools[{index}].input_schema" for index, name in enumerate(names)}
    if kind == "auto":
        return CallsWanted("auto", tools, several, params)
    if kind == "tool":
        tools = [_named(choice.name if choice else None, tools)]
    return CallsWanted("required", tools, several, params)


def _named(name: str | None, tools: Sequence[dict[str, Any]]) -> dict[str, Any]:
    if not name:
        raise missing_field("tool_choice.name")
    for tool in tools:
        if tool["function"]["name"] == name:
            return tool
    known = ", ".join(tool["function"]["name"] for tool in tools)
    raise RequestError(
        f'tool_choice.name is "{name}", which is not among the tools ({known}).',
        param="tool_choice.name",
        code="invalid_value",
    )
