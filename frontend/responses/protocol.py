"""The request bodies of OpenAI's Responses API with Arbora's extra fields.

Types only: other modules check the values. A null field counts as absent.
"""

from __future__ import annotations

from msgspec import Raw, Struct

from ..request.fields import NULL, JsonObject

Metadata = dict[str, str]


class Part(Struct, kw_only=True, omit_defaults=True):
    """A part of a message, of a call's output or of reasoning. Its `type` says which fields count."""

    type: str
    text: str | None = None
    refusal: str | None = None


class Item(Struct, kw_only=True, omit_defaults=True):
    """An item of a conversation. Its `type` says which fields count; without one it is a message."""

    id: str | None = None
    type: str | None = None
    status: str | None = None
    role: str | None = None
    content: str | list[Part] | None = None
    phase: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | list[Part] | None = None
    action: JsonObject | None = None
    summary: list[Part] | None = None
    encrypted_content: str | None = None


class InputFormat(Struct, kw_only=True, omit_defaults=True):
    """What the input of a custom tool must match."""

    type: str
    syntax: str | None = None
    definition: str | None = None


class ToolDefinition(Struct, kw_only=True, omit_defaults=True):
    """A tool, or a namespace of `tools`."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None
    format: InputFormat | None = None
    tools: list[ToolDefinition] | None = None
    defer_loading: bool | None = None


class AllowedTool(Struct, kw_only=True, omit_defaults=True):
    type: str
    name: str | None = None
    namespace: str | None = None


class ToolChoice(Struct, kw_only=True, omit_defaults=True):
    type: str
    name: str | None = None
    namespace: str | None = None
    mode: str | None = None
    tools: list[AllowedTool] | None = None


class TextFormat(Struct, kw_only=True, omit_defaults=True):
    type: str
    name: str | None = None
    description: str | None = None
    schema: Raw = NULL
    strict: bool | None = None


class TextConfig(Struct, kw_only=True, omit_defaults=True):
    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningConfig(Struct, kw_only=True, omit_defaults=True):
    effort: str | None = None
    summary: str | None = None


class ConversationName(Struct, kw_only=True):
    id: str


class StreamOptions(Struct, kw_only=True):
    include_obfuscation: bool | None = None


class PromptFields(Struct, kw_only=True):
    """The body of /v1/responses/input_tokens: the fields that the prompt is made of."""

    model: str | None = None
    input: str | list[Item] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationName | None = None
    tools: list[ToolDefinition] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    truncation: str | None = None
    chat_template_kwargs: JsonObject | None = None
    cache_salt: str | None = None


class ResponsesRequest(PromptFields, kw_only=True):
    """The body of /v1/responses."""

    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    include: list[str] | None = None
    max_output_tokens: int | None = None
    metadata: Metadata | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    user: str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    stop: str | list[str] | None = None
    min_tokens: int | None = None
    top_k: int | None = None
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


class ConversationRequest(Struct, kw_only=True):
    """The body of /v1/conversations."""

    items: list[Item] | None = None
    metadata: Metadata | None = None


class MetadataRequest(Struct, kw_only=True):
    """The body of /v1/conversations/{id}."""

    metadata: Metadata | None


class ItemsRequest(Struct, kw_only=True):
    """The body of /v1/conversations/{id}/items."""

    items: list[Item]
