"""A conversation as requests have it: messages with texts and tool calls, and tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Struct

from .declared import one_of
from .fields import JsonObject

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
PART_TYPES = ("text", "refusal")
CHOICE_TYPES = ("function", "allowed_tools")
CHOICE_MODES = ("auto", "required")


class FunctionDefinition(Struct, kw_only=True, omit_defaults=True):
    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class Tool(Struct, kw_only=True):
    type: Annotated[str, one_of(("function",))] = "function"
    function: FunctionDefinition | None = None


class FunctionName(Struct, kw_only=True):
    name: str


class AllowedTool(Struct, kw_only=True):
    type: str | None = None
    function: FunctionName


class AllowedTools(Struct, kw_only=True):
    mode: Annotated[str, one_of(CHOICE_MODES)]
    tools: list[AllowedTool]


class ToolChoice(Struct, kw_only=True):
    type: Annotated[str, one_of(CHOICE_TYPES)]
    function: FunctionName | None = None
    allowed_tools: AllowedTools | None = None


class CalledFunction(Struct, kw_only=True, omit_defaults=True):
    name: str
    arguments: str | JsonObject | None = None


class MessageToolCall(Struct, kw_only=True, omit_defaults=True):
    function: CalledFunction
    id: str | None = None
    type: str | None = None


class CacheBreakpoint(Struct, kw_only=True):
    """OpenAI's mark of a content part: the conversation up to its end is leased."""

    mode: str | None = None


class ContentPart(Struct, kw_only=True):
    type: Annotated[str, one_of(PART_TYPES)]
    text: str | None = None
    refusal: str | None = None
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class ChatMessage(Struct, kw_only=True):
    role: Annotated[str, one_of(ROLES)]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None
    function_call: CalledFunction | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


@dataclass(frozen=True)
class Conversation:
    """The messages to render. `begins_reply` adds the header of the assistant's message.

    `continues_last`: the reply continues the last message. `variables` are further template variables.
    """

    messages: Sequence[ChatMessage]
    begins_reply: bool = True
    continues_last: bool = False
    variables: Mapping[str, object] = field(default_factory=dict)


def template_variables(
    kwargs: Mapping[str, object] | None,
    *,
    thinks: bool | None = None,
    budget: int | None = None,
    effort: str | None = None,
    verbosity: str | None = None,
) -> dict[str, object]:
    """The variables that chat templates of reasoning models have. A request's `chat_template_kwargs` override
    the others; without either the template's own default holds. `budget` is in tokens."""
    variables = {
        "enable_thinking": thinks,
        "thinking_budget": budget,
        "reasoning_effort": effort,
        "verbosity": verbosity,
    }
    return {**{name: value for name, value in variables.items() if value is not None}, **(kwargs or {})}
