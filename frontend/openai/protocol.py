"""What clients send: OpenAI's request bodies with vLLM's extra fields.

Types only; ranges are checked in `validation`. A field that is absent and one that is null are the same.
"""

from __future__ import annotations

import msgspec
from msgspec import Raw, Struct

NULL = Raw(b"null")  # a `Raw` field that is absent; msgspec knows no optional ones
JsonObject = dict[str, object]


class JsonSchemaFormat(Struct, kw_only=True):
    name: str | None = None
    description: str | None = None
    schema: Raw = NULL
    strict: bool | None = None


class ResponseFormat(Struct, kw_only=True):
    """`schema` is llama.cpp's, beside json_object; the last three are a structural tag's."""

    type: str
    json_schema: JsonSchemaFormat | None = None
    schema: Raw = NULL
    format: Raw = NULL
    structures: Raw = NULL
    triggers: Raw = NULL


class StructuredOutputs(Struct, kw_only=True, forbid_unknown_fields=True):
    """vLLM's. JSON is compact in any case, and nothing falls back."""

    json: Raw = NULL
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


class GenerationFields(Struct, kw_only=True):
    """The fields that chat and text completions share."""

    model: str | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    regex: str | None = None
    choice: list[str] | None = None
    json_schema: Raw = NULL
    grammar: str | None = None
    ebnf: str | None = None
    guided_json: Raw = NULL
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    structured_outputs: StructuredOutputs | None = None
    property_order: str | None = None
    unenforced: str | None = None
    complete_json: bool | None = None
    cache_salt: str | None = None
    cache_prompt: bool | None = None
    priority: int | None = None
    user: str | None = None


class CompletionRequest(GenerationFields, kw_only=True):
    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None


class FunctionDefinition(Struct, kw_only=True, omit_defaults=True):
    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class Tool(Struct, kw_only=True):
    type: str
    function: FunctionDefinition | None = None


class FunctionName(Struct, kw_only=True):
    name: str


class AllowedTool(Struct, kw_only=True):
    type: str | None = None
    function: FunctionName


class AllowedTools(Struct, kw_only=True):
    mode: str
    tools: list[AllowedTool]


class ToolChoice(Struct, kw_only=True):
    type: str
    function: FunctionName | None = None
    allowed_tools: AllowedTools | None = None


class CalledFunction(Struct, kw_only=True, omit_defaults=True):
    name: str
    arguments: str | JsonObject | None = None


class MessageToolCall(Struct, kw_only=True, omit_defaults=True):
    function: CalledFunction
    id: str | None = None
    type: str | None = None


class ContentPart(Struct, kw_only=True):
    type: str
    text: str | None = None
    refusal: str | None = None


class ChatMessage(Struct, kw_only=True):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None
    function_call: CalledFunction | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class ChatRequest(GenerationFields, kw_only=True):
    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: JsonObject | None = None


class PromptFields(Struct, kw_only=True):
    """Those of a prompt that is not answered: a text or `messages`."""

    model: str | None = None
    messages: list[ChatMessage] | None = None
    tools: list[Tool] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: JsonObject | None = None
    cache_salt: str | None = None


class TokenizeRequest(PromptFields, kw_only=True):
    prompt: str | None = None
    return_token_strs: bool | None = None


class PinRequest(PromptFields, kw_only=True):
    prompt: str | list[int] | None = None
    ttl_s: float


class DetokenizeRequest(Struct, kw_only=True):
    model: str | None = None
    tokens: list[int] = msgspec.field()
