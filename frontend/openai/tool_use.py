"""What `tools` and `tool_choice` mean for a request's grammar and the reading of its reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from ...runtime.errors import RequestError
from ...runtime.messages import GrammarSpec, LeftOut
from ..text.tokenizer import Tokenizer
from ..text.tool_calls import ToolCallParser, ToolFormat, check_against
from ..text.tool_grammar import check_strict, enforced_names, optional_calls, required_calls
from .protocol import ChatRequest, NamedTool

CHOICES = ("none", "auto", "required")


class ToolUse(NamedTuple):
    """`required`: the reply must be a call; `allowed`: it may have calls. Both match `grammar`.

    `finish_reason` is that of a reply with calls: OpenAI says "stop" if the caller named the function.
    """

    mode: Literal["required", "allowed", "none"]
    format: ToolFormat
    tools: Sequence[dict[str, Any]] = ()
    grammar: GrammarSpec | None = None
    finish_reason: str = "tool_calls"

    def new_parser(self, left_out: Sequence[LeftOut]) -> ToolCallParser | None:
        """`left_out` is what the grammar doesn't enforce."""
        if self.mode == "none":
            return None
        paths = [each.path for each in left_out]
        return ToolCallParser(
            self.format, check_against(self.tools), enforced_names(self.tools, self.format, paths)
        )

    def shown_special(self, tokenizer: Tokenizer) -> frozenset[int]:
        return frozenset() if self.mode == "none" else self.format.shown_special(tokenizer)


def tool_use(
    request: ChatRequest, tools: list[dict[str, Any]] | None, format: ToolFormat, grammar: GrammarSpec | None
) -> ToolUse:
    """`grammar` is what the request's other fields constrain the reply to. Raises `RequestError`."""
    choice = request.tool_choice
    if isinstance(choice, str) and choice not in CHOICES:
        raise _wrong_choice(f"is {choice!r}, but must be one of {', '.join(CHOICES)}, or name a function")
    if not tools:
        if choice not in (None, "none", "auto"):
            raise _wrong_choice("asks for a call, but there are no tools")
        return ToolUse("none", format)
    if choice == "required" or isinstance(choice, NamedTool):
        if grammar is not None:
            raise _wrong_choice(f"asks for a call, which can't be used together with {grammar.param}")
        return _required(request, tools, format, choice)
    if choice == "none" or grammar is not None:
        return ToolUse("none", format)
    check_strict(format, tools)
    wanted = optional_calls(format, tools, several=request.parallel_tool_calls is not False)
    return ToolUse("allowed", format, tools, _spec(wanted))


def _required(
    request: ChatRequest, tools: list[dict[str, Any]], format: ToolFormat, choice: str | NamedTool
) -> ToolUse:
    if not isinstance(choice, NamedTool):
        wanted = required_calls(format, tools, several=request.parallel_tool_calls is not False)
        return ToolUse("required", format, tools, _spec(wanted))
    named = [tool for tool in tools if tool["function"]["name"] == choice.function.name]
    if not named:
        known = ", ".join(tool["function"]["name"] for tool in tools)
        raise _wrong_choice(
            f'names the function "{choice.function.name}", which is not among the tools ({known})'
        )
    wanted = required_calls(format, named, several=False)
    return ToolUse("required", format, named, _spec(wanted), finish_reason="stop")


def _spec(format: dict[str, Any]) -> GrammarSpec:
    return GrammarSpec("structural_tag", msgspec.json.encode(format).decode(), "tools")


def _wrong_choice(problem: str) -> RequestError:
    return RequestError(f"tool_choice {problem}.", param="tool_choice", code="invalid_value")
