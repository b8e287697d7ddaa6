"""Anthropic's request bodies with Arbora's extra fields.

A null field counts as absent. Other modules check the values.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Raw, Struct

from ...core.declared import one_of, within
from ...core.fields import NULL, JsonObject, JsonSchema, SamplerFields, StopStrings, Tokens

ROLES = ("user", "assistant", "system")
EFFORTS = ("low", "medium", "high", "xhigh", "max")
THINKING_TYPES = ("enabled", "adaptive", "disabled")
DISPLAYS = ("summarized", "omitted")
MIN_BUDGET = 1024  # tokens of thinking
TOOL_CHOICES = ("auto", "any", "tool", "none")
BLOCK_TYPES = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result")


class CacheControl(Struct, kw_only=True):
    """Leases the prompt for `ttl`, up to the end of the block or tool that has this field."""

    type: str | None = None
    ttl: str | None = None


class ContentBlock(Struct, kw_only=True):
    """A block of a message, a system prompt or a tool's result. Its `type` says which fields count."""

    type: Annotated[str, one_of(BLOCK_TYPES)]
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    input: Raw = NULL
    tool_use_id: str | None = None
    content: Raw = NULL
    is_error: bool | None = None
    cache_control: CacheControl | None = None


class InputMessage(Struct, kw_only=True):
    role: Annotated[str, one_of(ROLES)]
    content: str | list[ContentBlock]


class ToolDefinition(Struct, kw_only=True):
    type: str | None = None
    name: str | None = None
    description: str | None = None
    input_schema: JsonObject | None = None
    strict: bool | None = None
    allowed_callers: list[str] | None = None
    cache_control: CacheControl | None = None
    defer_loading: bool | None = None
    eager_input_streaming: bool | None = None


class ToolChoice(Struct, kw_only=True):
    type: Annotated[str, one_of(TOOL_CHOICES)]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(Struct, kw_only=True):
    type: Annotated[str, one_of(THINKING_TYPES)]
    budget_tokens: Annotated[int, within(MIN_BUDGET)] | None = None
    display: Annotated[str, one_of(DISPLAYS)] | None = None


class OutputFormat(Struct, kw_only=True):
    type: str
    schema: JsonSchema = NULL


class OutputConfig(Struct, kw_only=True):
    effort: Annotated[str, one_of(EFFORTS)] | None = None
    format: OutputFormat | None = None


class ContextEdit(Struct, kw_only=True):
    type: str
    keep: Raw = NULL


class ContextManagement(Struct, kw_only=True):
    edits: list[ContextEdit] | None = None


class Metadata(Struct, kw_only=True):
    user_id: str | None = None


class PromptRequest(SamplerFields, kw_only=True):
    """The body of /v1/messages/count_tokens. Fields that only say how a reply is sampled change no count.

    `output_format` is the older name of `output_config.format`.
    """

    model: str | None = None
    messages: list[InputMessage]
    system: str | list[ContentBlock] | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    context_management: ContextManagement | None = None
    chat_template_kwargs: JsonObject | None = None
    cache_control: CacheControl | None = None


class MessagesRequest(PromptRequest, kw_only=True):
    """The body of /v1/messages."""

    max_tokens: Tokens
    stop_sequences: StopStrings | None = None
    stream: bool | None = None
    metadata: Metadata | None = None
    diagnostics: JsonObject | None = None
    explain_cache: bool | None = None
