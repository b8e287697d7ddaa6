"""OpenAI's request bodies with vLLM's extra fields.

A null field counts as absent. `core.validation` checks the declared ranges.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Raw, Struct

from ...core.declared import one_of, within
from ...core.fields import (
    MAX_CHOICES,
    NULL,
    JsonObject,
    JsonSchema,
    Salt,
    SamplingFields,
    Tokens,
    TopLogprobs,
    TtlS,
)
from ...core.messages import ChatMessage, ContentPart, Tool, ToolChoice

FORMAT_TYPES = ("text", "json_object", "json_schema", "structural_tag")
REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
VERBOSITIES = ("low", "medium", "high")


class JsonSchemaFormat(Struct, kw_only=True):
    name: str | None = None
    description: str | None = None
    schema: JsonSchema = NULL
    strict: bool | None = None


class ResponseFormat(Struct, kw_only=True):
    """OpenAI's `response_format`, with `schema` of llama.cpp and Together. `format`, `structures` and
    `triggers` belong to structural tags."""

    type: Annotated[str, one_of(FORMAT_TYPES)]
    json_schema: JsonSchemaFormat | None = None
    schema: JsonSchema = NULL
    format: Raw = NULL
    structures: Raw = NULL
    triggers: Raw = NULL


class StructuredOutputs(Struct, kw_only=True):
    """vLLM's constraints. `disable_fallback` has no effect, as there is no other backend."""

    json: JsonSchema = NULL
    regex: str | None = None
    choice: list[str] | None = None
    json_object: bool | None = None
    grammar: str | None = None
    structural_tag: Raw = NULL
    disable_any_whitespace: bool | None = None
    disable_fallback: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None


class StreamOptions(Struct, kw_only=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class PromptCacheOptions(Struct, kw_only=True):
    mode: str | None = None
    ttl: str | None = None
    prewarm: bool | None = None


class GenerationFields(SamplingFields, kw_only=True):
    """The fields that chat and text completions share."""

    model: str | None = None
    best_of: Annotated[int, within(1, MAX_CHOICES)] | None = None
    add_special_tokens: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    json_schema: JsonSchema = NULL
    ebnf: str | None = None
    guided_json: JsonSchema = NULL
    guided_whitespace_pattern: str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None
    user: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: str | None = None
    explain_cache: bool | None = None


class CompletionRequest(GenerationFields, kw_only=True):
    prompt: str | list[str | int | list[int]]
    logprobs: TopLogprobs | None = None
    echo: bool | None = None


class Prediction(Struct, kw_only=True):
    """OpenAI's `prediction`: a text that the reply is expected to repeat in part."""

    type: Annotated[str, one_of(("content",))]
    content: str | list[ContentPart]


class ChatRequest(GenerationFields, kw_only=True):
    messages: list[ChatMessage]
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    tools: list[Tool] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Annotated[str, one_of(REASONING_EFFORTS)] | None = None
    verbosity: Annotated[str, one_of(VERBOSITIES)] | None = None
    include_reasoning: bool | None = None
    prediction: Prediction | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: JsonObject | None = None


class PromptFields(Struct, kw_only=True):
    """The fields of a prompt that gets no reply: a text or `messages`."""

    model: str | None = None
    messages: list[ChatMessage] | None = None
    tools: list[Tool] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: JsonObject | None = None
    cache_salt: Salt | None = None


class TokenizeRequest(PromptFields, kw_only=True):
    prompt: str | None = None
    return_token_strs: bool | None = None


class PinRequest(PromptFields, kw_only=True):
    prompt: str | list[int] | None = None
    ttl_s: TtlS


class DetokenizeRequest(Struct, kw_only=True):
    model: str | None = None
    tokens: list[int] = msgspec.field()
