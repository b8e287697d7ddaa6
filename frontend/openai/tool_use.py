"""What `tools` and `tool_choice` mean for a request's prompt, its grammar and the reading of its reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from ...runtime.errors import RequestError
from ...runtime.messages import GrammarSpec
from ..text.tokenizer import Tokenizer
from ..text.tool_calls import ImposedCallParser, ToolCallParser, ToolFormat, call_grammar, check_against
from .protocol import ChatRequest, NamedTool

CHOICES = ("none", "auto", "required")


class ToolUse(NamedTuple):
    """`imposed`: the reply must be a call and match `grammar`; `allowed`: it may have calls.

    `finish_reason` is that of a reply with calls: OpenAI says "stop" if the caller named the function.
    """

    mode: Literal["imposed", "allowed", "none"]
    format: ToolFormat
    tools: Sequence[dict[str, Any]] = ()
    grammar: GrammarSpec | None = None
    finish_reason: str = "tool_calls"

    @property
    def prompt_suffix(self) -> str:
        """What the prompt must end with for the reply to be a call."""
        return self.format.opening if self.mode == "imposed" else ""

    def new_parser(self) -> ToolCallParser | ImposedCallParser | None:
        match self.mode:
            case "imposed":
                return ImposedCallParser(self.format)
            case "allowed":
                return ToolCallParser(self.format, check_against(self.tools))
        return None

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
        named = choice.function.name if isinstance(choice, NamedTool) else None
        finish_reason = "tool_calls" if named is None else "stop"
        return ToolUse("imposed", format, tools, call_grammar(format, tools, named), finish_reason)
    if choice == "none" or grammar is not None:
        return ToolUse("none", format)
    return ToolUse("allowed", format, tools)


def _wrong_choice(problem: str) -> RequestError:
    return RequestError(f"tool_choice {problem}.", param="tool_choice", code="invalid_value")
