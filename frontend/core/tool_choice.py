"""OpenAI's `tool_choice`: which tools a reply may or must call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .messages import CHOICE_MODES, CHOICE_TYPES, ToolChoice
from .requested_tools import CallsWanted
from .validation import check_word, invalid_field, missing_field

CHOICES = ("none", "auto", "required")
Tools = list[dict[str, Any]]


def calls_wanted(choice: str | ToolChoice | None, tools: Tools | None, parallel: bool | None) -> CallsWanted:
    """The calls that a `tool_choice` allows. Raises `RequestError`.

    `tools` are the definitions of the request's tools, `parallel` is its `parallel_tool_calls`.
    """
    places = enumerate(tools or ())
    params = {tool["function"]["name"]: f"tools[{index}].function.parameters" for index, tool in places}
    choice, several = choice or "auto", parallel is not False
    if isinstance(choice, ToolChoice) and choice.type == "allowed_tools":
        choice, tools = _allowed(choice, tools or [])
    if isinstance(choice, str) and choice not in CHOICES:
        raise invalid_field(
            "tool_choice", f"is {choice!r}, but must be one of {', '.join(CHOICES)}, or name a function"
        )
    if not tools and choice not in ("auto", "none"):
        raise invalid_field("tool_choice", "asks for a call, but there are no tools")
    if not tools or choice == "none":
        return CallsWanted("none")
    if choice == "auto":
        return CallsWanted("auto", tools, several, params)
    if isinstance(choice, str):
        return CallsWanted("required", tools, several, params)
    return CallsWanted("required", [_named(choice, tools)], several=False, params=params)


def names_function(choice: str | ToolChoice | None) -> bool:
    """Whether a `tool_choice` names the function that must be called."""
    return isinstance(choice, ToolChoice) and choice.type == "function"


def _allowed(choice: ToolChoice, tools: Tools) -> tuple[str, Tools]:
    """The mode and the tools of `allowed_tools`. The prompt still describes all tools."""
    allowed = choice.allowed_tools
    if allowed is None:
        raise missing_field("tool_choice.allowed_tools")
    if not allowed.tools:
        raise invalid_field("tool_choice", "allows no tools")
    check_word("tool_choice.allowed_tools.mode", allowed.mode, CHOICE_MODES)
    return allowed.mode, [_find(tool.function.name, tools) for tool in allowed.tools]


def _named(choice: ToolChoice, tools: Tools) -> dict[str, Any]:
    check_word("tool_choice.type", choice.type, CHOICE_TYPES)
    if choice.function is None:
        raise missing_field("tool_choice.function")
    return _find(choice.function.name, tools)


def _find(name: str, tools: Tools) -> dict[str, Any]:
    return find_tool(name, tools, "tool_choice", "names the function")


def find_tool(name: str, tools: Sequence[dict[str, Any]], param: str, says: str) -> dict[str, Any]:
    """The definition of the tool `name`. If there is none, the error begins with `param` and `says`."""
    for tool in tools:
        if tool["function"]["name"] == name:
            return tool
    known = ", ".join(tool["function"]["name"] for tool in tools)
    raise invalid_field(param, f'{says} "{name}", which is not among the tools ({known})')
