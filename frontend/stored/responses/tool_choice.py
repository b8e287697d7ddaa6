"""OpenAI's `tool_choice` of the Responses API: which tools a response may or must call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.requested_tools import CallsWanted
from ...core.validation import check_word, invalid_field, missing_field
from .protocol import AllowedTool, ToolChoice
from .tools import LOCAL_SHELL, OfferedTools

WORDS = ("none", "auto", "required")
_NAMED = ("function", "custom", LOCAL_SHELL)


def calls_wanted(
    choice: str | ToolChoice | None, offered: OfferedTools, parallel: bool | None
) -> CallsWanted:
    """The calls that a `tool_choice` allows. `parallel` is the request's `parallel_tool_calls`.

    Raises `RequestError`.
    """
    several = parallel is not False
    tools: Sequence[dict[str, Any]] = offered.callable
    if isinstance(choice, ToolChoice):
        mode = "required"
        if choice.type == "allowed_tools":
            mode, tools = _allowed(choice, offered)
        else:
            _check_named("tool_choice.type", choice.type, (*_NAMED, "allowed_tools"))
            tools, several = [_tool(choice, "tool_choice", offered)], False
    else:
        mode = choice or "auto"
        check_word("tool_choice", mode, WORDS)
    if mode == "required" and not tools:
        raise invalid_field(
            "tool_choice", "asks for a call, but there are no tools: add tools, or leave tool_choice out"
        )
    if not tools or mode == "none":
        return CallsWanted("none")
    return CallsWanted("auto" if mode == "auto" else "required", tools, several, offered.params)


def _allowed(choice: ToolChoice, offered: OfferedTools) -> tuple[str, list[dict[str, Any]]]:
    """The mode and the tools of `allowed_tools`. The prompt still describes all tools."""
    if choice.mode is None:
        raise missing_field("tool_choice.mode")
    check_word("tool_choice.mode", choice.mode, ("auto", "required"))
    if not choice.tools:
        raise missing_field("tool_choice.tools")
    found = []
    for index, tool in enumerate(choice.tools):
        where = f"tool_choice.tools[{index}]"
        _check_named(f"{where}.type", tool.type, _NAMED)
        found.append(_tool(tool, where, offered))
    return choice.mode, found


def _check_named(param: str, type: str, served: Sequence[str]) -> None:
    if type not in served:
        raise invalid_field(
            param,
            f"is {type!r}, which names no tool that this server knows: use one of {', '.join(served)}",
            "unsupported_parameter",
        )


def _tool(choice: ToolChoice | AllowedTool, where: str, offered: OfferedTools) -> dict[str, Any]:
    """The tool that the choice names. Its namespace may be left out, or stand before the name."""
    name = LOCAL_SHELL if choice.type == LOCAL_SHELL else choice.name
    if not name:
        raise missing_field(f"{where}.name")
    matches = [
        tool
        for tool in offered.callable
        for called in [offered.called[tool["function"]["name"]]]
        if called.kind == choice.type
        and name in (called.name, tool["function"]["name"])
        and choice.namespace in (None, called.namespace)
    ]
    if len(matches) == 1:
        return matches[0]
    known = ", ".join(offered.called)
    problem = f"which is not among the tools ({known})" if not matches else "which several tools have"
    advice = "" if not matches else ": give its namespace"
    raise invalid_field(where, f"names the {choice.type} tool {name!r}, {problem}{advice}")
