"""The request bodies of OpenAI's Responses API with Arbora's extra fields.

Other modules check the values. A null field counts as absent.
"""

from __future__ import annotations

import secrets
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from ...api.openai.protocol import REASONING_EFFORTS, VERBOSITIES, PromptCacheOptions
from ...core.declared import one_of, within
from ...core.fields import JsonObject, JsonSchema, SamplerFields, StopString, StopStrings, TopLogprobs
from ...core.messages import CacheBreakpoint
from ..stored_request import MAX_METADATA

PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "local_shell_call": "lsh",
    "local_shell_call_output": "lsho",
}
"""The prefix of an item's id, by the item's type."""
ROLES = ("user", "assistant", "system", "developer")
ITEM_TYPES = (*PREFIXES, "item_reference")
TOOL_TYPES = ("function", "custom", "local_shell", "namespace")
SUMMARIES = ("auto", "concise", "detailed", "none")
FORMATS = ("text", "json_schema", "json_object")

Metadata = Annotated[dict[str, str], Meta(extra_json_schema={"maxProperties": MAX_METADATA})]


class Part(Struct, kw_only=True, omit_defaults=True):
    """A part of a message, of a call's output or of reasoning. Its `type` says which fields count."""

    type: str
    text: str | None = None
    refusal: str | None = None
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class Item(Struct, kw_only=True, omit_defaults=True):
    """An item of a conversation. Its `type` says which fields count; without one it is a message."""

    id: str | None = None
    type: Annotated[str, one_of(ITEM_TYPES)] | None = None
    status: str | None = None
    role: Annotated[str, one_of(ROLES)] | None = None
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
    """The format that the input of a custom tool must match."""

    type: str
    syntax: str | None = None
    definition: str | None = None


class ToolDefinition(Struct, kw_only=True, omit_defaults=True):
    """A tool, or a namespace of `tools`."""

    type: Annotated[str, one_of(TOOL_TYPES)]
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
    type: Annotated[str, one_of(FORMATS)]
    name: str | None = None
    description: str | None = None
    schema: JsonSchema | UnsetType = UNSET
    strict: bool | None = None


class TextConfig(Struct, kw_only=True, omit_defaults=True):
    format: TextFormat | None = None
    verbosity: Annotated[str, one_of(VERBOSITIES)] | None = None


class ReasoningConfig(Struct, kw_only=True, omit_defaults=True):
    effort: Annotated[str, one_of(REASONING_EFFORTS)] | None = None
    summary: Annotated[str, one_of(SUMMARIES)] | None = None


class ConversationName(Struct, kw_only=True):
    id: str


class StreamOptions(Struct, kw_only=True):
    include_obfuscation: bool | None = None


class PromptFields(SamplerFields, kw_only=True):
    """The body of /v1/responses/input_tokens. Fields that only say how a reply is sampled change no count."""

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
    truncation: Annotated[str, one_of(("auto", "disabled"))] | None = None
    chat_template_kwargs: JsonObject | None = None


class ResponsesRequest(PromptFields, kw_only=True):
    """The body of /v1/responses."""

    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    include: list[str] | None = None
    max_output_tokens: Annotated[int, within(1)] | None = None
    metadata: Metadata | None = None
    top_logprobs: TopLogprobs | None = None
    user: str | None = None
    stop: StopString | StopStrings | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: str | None = None
    explain_cache: bool | None = None


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


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(24)}"


def new_item_id(type: str | None) -> str:
    return new_id(PREFIXES[type or "message"])
