"""The response bodies of OpenAI's Responses API."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from ...api.openai.responses import ContentLogprob
from ...core.cache_misses.explanation import Explanation
from ...core.fields import JsonObject
from ...core.reply import UnenforcedKeyword
from .protocol import Metadata, ReasoningConfig, TextConfig, ToolChoice, ToolDefinition

ItemStatus = Literal["in_progress", "completed", "incomplete"]
PAGE_ITEMS = (20, 100)
"""Items on a page of a list: the default and the maximum."""
ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
OPEN_STATUSES = ("queued", "in_progress")


class OutputText(Struct, tag_field="type", tag="output_text", kw_only=True):
    text: str = ""
    annotations: list[JsonObject] = []
    logprobs: list[ContentLogprob] = []


class ReasoningText(Struct, tag_field="type", tag="reasoning_text"):
    text: str = ""


class OutputMessage(Struct, tag_field="type", tag="message", kw_only=True):
    id: str
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class ReasoningItem(Struct, tag_field="type", tag="reasoning", kw_only=True):
    id: str
    status: ItemStatus
    summary: list[JsonObject] = []
    content: list[ReasoningText]
    encrypted_content: str | UnsetType = UNSET


class FunctionCall(Struct, tag_field="type", tag="function_call", kw_only=True):
    id: str
    status: ItemStatus
    call_id: str
    name: str
    namespace: str | UnsetType = UNSET
    arguments: str = ""


class CustomToolCall(Struct, tag_field="type", tag="custom_tool_call", kw_only=True):
    id: str
    status: ItemStatus
    call_id: str
    name: str
    namespace: str | UnsetType = UNSET
    input: str = ""


class LocalShellCall(Struct, tag_field="type", tag="local_shell_call", kw_only=True):
    id: str
    status: ItemStatus
    call_id: str
    action: JsonObject


OutputItem = OutputMessage | ReasoningItem | FunctionCall | CustomToolCall | LocalShellCall


class InputTokensDetails(Struct):
    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(Struct):
    reasoning_tokens: int


class Usage(Struct, kw_only=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(Struct):
    code: str
    message: str


class IncompleteDetails(Struct):
    reason: Literal["max_output_tokens"]


class ConversationId(Struct):
    id: str


class Response(Struct, kw_only=True):
    """OpenAI's object of a response. `created_at` and `completed_at` are in seconds since 1970."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: ResponseStatus
    background: bool
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: list[OutputItem] = []
    parallel_tool_calls: bool
    previous_response_id: str | None
    conversation: ConversationId | None
    reasoning: ReasoningConfig
    store: bool
    temperature: float
    text: TextConfig
    tool_choice: str | ToolChoice
    tools: list[ToolDefinition]
    top_logprobs: int
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: Usage | None = None
    user: str | None
    metadata: Metadata
    unenforced: list[UnenforcedKeyword] | UnsetType = UNSET
    cache_explanation: Explanation | UnsetType = UNSET


class Conversation(Struct, kw_only=True):
    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: Metadata


class TokensCount(Struct, kw_only=True):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int
