"""OpenAI's fields without effect, and those that bind a reply. A misspelt binding field is refused, because
the reply would not match it."""

from __future__ import annotations

from ...core.messages import AllowedTool, AllowedTools, FunctionDefinition, FunctionName, Tool, ToolChoice
from ...core.validation import check_fields, invalid_field
from ...http.body_kind import (
    CONSTRAINTS,
    Binding,
    Bindings,
    FixedField,
    InertFields,
    constraints_elsewhere,
    parameters_elsewhere,
)
from .protocol import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    GenerationFields,
    JsonSchemaFormat,
    PinRequest,
    ResponseFormat,
    StructuredOutputs,
    TokenizeRequest,
)

_SHORTEN = "Shorten the prompt: POST /tokenize counts its tokens."
_TEXT_ALONE = "Leave it out: replies are text only."
_IDS = "Leave it out: POST /tokenize gives the ids of a text."
_JSON_OBJECT = 'Use response_format: {"type": "json_object"}.'

_FIXED = {
    "modalities": FixedField(('["text"]',), _TEXT_ALONE),
    "audio": FixedField((), _TEXT_ALONE),
    "functions": FixedField(("[]",), 'Give each as one of tools: {"type": "function", "function": …}.'),
    "function_call": FixedField(('"none"', '"auto"'), "Use tools with tool_choice."),
    "web_search_options": FixedField((), "Give a search of your own as one of tools."),
    "use_beam_search": FixedField(("false",), "Use n for several replies."),
    "length_penalty": FixedField(("1", "1.0")),
    "truncate_prompt_tokens": FixedField((), _SHORTEN),
    "truncation_side": FixedField((), _SHORTEN),
    "allowed_token_ids": FixedField(("[]",), "Use choice or regex, or a logit_bias of 100 for these ids."),
    "bad_words": FixedField(
        ("[]",), "Give the ids of their tokens (from POST /tokenize) a logit_bias of -100."
    ),
    "logits_processors": FixedField(("[]",), "Use logit_bias."),
    "prompt_embeds": FixedField((), "Give the prompt as text or token ids."),
    "structural_tag": FixedField((), "Give it as response_format."),
    "guided_json_object": FixedField(("false",), _JSON_OBJECT),
    "json_mode": FixedField(("false",), _JSON_OBJECT),
    "guided_decoding": FixedField((), "Use structured_outputs."),
    "response_schema": FixedField((), "Use json_schema."),
    "extra_body": FixedField((), "Put its fields beside the others."),
    "chat_template": FixedField(
        (),
        "The model's own is used: set its variables by chat_template_kwargs, or send the rendered text to "
        "/v1/completions.",
    ),
    "documents": FixedField(("[]",), "Put them into a message."),
    "return_tokens_as_token_ids": FixedField(("false",), _IDS),
    "return_token_ids": FixedField(("false",), _IDS),
    "return_prompt_text": FixedField(("false",)),
    "kv_transfer_params": FixedField(),
    "echo": FixedField(("false",), "Use /v1/completions, which has it."),
    "suffix": FixedField(
        ('""',), "Write it into the prompt, in the model's own form for filling in the middle."
    ),
    "thinking_token_budget": FixedField(("-1",), "Use reasoning_effort or max_tokens."),
    "repetition_detection": FixedField((), "Use repetition_penalty or frequency_penalty."),
    "logprob_token_ids": FixedField(("[]",), "Use logprobs, in chats with top_logprobs."),
    "watermarking": FixedField(("false",)),
    "vllm_xargs": FixedField(("{}",)),
}

_HINTS = {
    "store": FixedField(("false",), "Replies are not kept."),
    "service_tier": FixedField(
        ('"auto"', '"default"'), "All requests are served alike, except for priority."
    ),
}
_WITHOUT_EFFECT = (
    "metadata",
    "safety_identifier",
    "request_id",
    "spaces_between_special_tokens",
    "guided_decoding_backend",
    "structured_outputs_backend",
    "structured_outputs_config",
    "structured_output_method",
    "session_id",
    "stream_interval",
    "media_io_kwargs",
    "mm_processor_kwargs",
)
INERT = InertFields(_FIXED, _HINTS, _WITHOUT_EFFECT)

POOLING_INERT = InertFields(
    {
        "truncation_side": FixedField(('"right"',), "An input is cut at its end."),
        "messages": FixedField(("[]",), "Give the text as input."),
        "mm_processor_kwargs": FixedField(("{}",)),
        "embed_dtype": FixedField(('"float32"',), "Embeddings have float32 numbers."),
        "endianness": FixedField(('"native"', '"little"')),
    },
    without_effect=("request_id", "input_type", "task"),
)
"""for requests to a model that pools"""

OPENAI_CONSTRAINTS = (
    "response_format",
    "structured_outputs",
    "json_schema",
    "ebnf",
    *(f"guided_{kind}" for kind in ("json", "regex", "choice", "grammar")),
    *CONSTRAINTS,
)
_ELSEWHERE = {
    **constraints_elsewhere("json_schema"),
    "guided_schema": "json_schema",
    "json": "json_schema",
    "output_format": "response_format",
    "regular_expression": "regex",
    "enum": "choice",
}
_FORMATS: Bindings = {
    ResponseFormat: Binding(ResponseFormat.__struct_fields__, all_bind=True),
    JsonSchemaFormat: Binding(
        ("schema",), {"type": "schema.type", "properties": "schema.properties"}, all_bind=True
    ),
    StructuredOutputs: Binding(
        StructuredOutputs.__struct_fields__, {"json_schema": "json", "ebnf": "grammar"}, all_bind=True
    ),
}
_TOOLS: Bindings = {
    Tool: Binding(Tool.__struct_fields__, {"parameters": "function.parameters"}),
    FunctionDefinition: Binding(("parameters", "strict"), parameters_elsewhere("parameters")),
    ToolChoice: Binding(
        ToolChoice.__struct_fields__,
        {"name": "function.name", "mode": "allowed_tools.mode", "tools": "allowed_tools.tools"},
    ),
    AllowedTools: Binding(AllowedTools.__struct_fields__),
    AllowedTool: Binding(AllowedTool.__struct_fields__),
    FunctionName: Binding(FunctionName.__struct_fields__),
}
_PROMPT = Binding(("prompt", "messages"), dict.fromkeys(("text", "content", "input"), "prompt"))
_TOKENS = Binding(("tokens",), dict.fromkeys(("ids", "token_ids", "input_ids"), "tokens"))

IN_COMPLETIONS: Bindings = {CompletionRequest: Binding(OPENAI_CONSTRAINTS, _ELSEWHERE), **_FORMATS}
IN_CHATS: Bindings = {
    ChatRequest: Binding((*OPENAI_CONSTRAINTS, "tools", "tool_choice"), _ELSEWHERE),
    **_FORMATS,
    **_TOOLS,
}
IN_PROMPTS: Bindings = {TokenizeRequest: _PROMPT, PinRequest: _PROMPT}
IN_TOKENS: Bindings = {DetokenizeRequest: _TOKENS}


def check_generation(request: GenerationFields) -> None:
    """Raises `RequestError` naming a field that is out of range or conflicts with another field."""
    check_fields(request)
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise invalid_field(
            "best_of",
            f"is {request.best_of}, but choosing among more replies than n is not supported: "
            f"set it to n, which is {request.n or 1}, or leave it out",
            "unsupported_parameter",
        )
    if request.stream_options is not None and not request.stream:
        raise invalid_field("stream_options", "is only allowed when stream is true")
    if request.prompt_logprobs is not None and request.stream:
        raise invalid_field("prompt_logprobs", "is not available when stream is true")
