"""Anthropic's request bodies with Arbora's extra fields.

Types only: other modules check the values. A null field counts as absent.
"""

from __future__ import annotations

from msgspec import Raw, Struct

from ..request.fields import JsonObject

NULL = Raw(b"null")  # an absent `Raw` field: msgspec has no optional ones


class CacheControl(Struct, kw_only=True):
    """The prompt up to the end of the block or tool that has it is leased for `ttl`."""

    type: str | None = None
    ttl: str | None = None


class ContentBlock(Struct, kw_only=True):
    """A block of a message, a system prompt or a tool's result. Its `type` says which fields count."""

    type: str
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
    role: str
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
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(Struct, kw_only=True):
    type: str
    budget_tokens: int | None = None
    display: str | None = None


class OutputFormat(Struct, kw_only=True):
    type: str
    schema: Raw = NULL


class OutputConfig(Struct, kw_only=True):
    effort: str | None = None
    format: OutputFormat | None = None


class ContextEdit(Struct, kw_only=True):
    type: str
    keep: Raw = NULL


class ContextManagement(Struct, kw_only=True):
    edits: list[ContextEdit] | None = None


class Metadata(Struct, kw_only=True):
    user_id: str | None = None


class PromptRequest(Struct, kw_only=True):
    """The body of /v1/messages/count_tokens: the fields that the prompt is made of.

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
    cache_salt: str | None = None
    cache_control: CacheControl | None = None


class MessagesRequest(PromptRequest, kw_only=True):
    """The body of /v1/messages."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: Metadata | None = None
    diagnostics: JsonObject | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    min_tokens: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    property_order: str | None = None
    unenforced: str | None = None
    complete_json: bool | None = None
    cache_prompt: bool | None = None
    priority: int | None = None
    explain_cache: bool | None = None
