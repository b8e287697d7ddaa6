"""Tables of the fields that have no effect, allow few values, or bind what a response may be."""

from __future__ import annotations

from ...http.body_kind import (
    CONSTRAINTS,
    Binding,
    Bindings,
    BodyKind,
    FixedField,
    InertFields,
    constraints_elsewhere,
    parameters_elsewhere,
)
from .protocol import (
    AllowedTool,
    ConversationRequest,
    InputFormat,
    ItemsRequest,
    MetadataRequest,
    PromptFields,
    ReasoningConfig,
    ResponsesRequest,
    TextConfig,
    TextFormat,
    ToolChoice,
    ToolDefinition,
)

_FIXED = {
    "prompt": FixedField((), "Send its text as instructions or input: no prompts are kept here."),
    "moderation": FixedField((), "Check texts in the client."),
    "context_management": FixedField(("[]",), "Ask for a summary in a message, and send that."),
    "n": FixedField(("1",), "Send several requests: they share the prompt's cache."),
    "logprobs": FixedField(("false",), 'Use include: ["message.output_text.logprobs"] and top_logprobs.'),
    "modalities": FixedField(('["text"]',), "Leave it out: responses are text only."),
    "image": FixedField((), "Leave it out: responses are text only."),
    "logit_bias": FixedField(("{}",), "Use /v1/chat/completions, which has it."),
}
_HINTS = {
    "service_tier": FixedField(
        ('"auto"', '"default"'), "All requests are served alike, except for priority."
    ),
}
_WITHOUT_EFFECT = (
    "safety_identifier",
    "max_tool_calls",
    "access_programs",
    "background_options",
    "client_metadata",
)
_WITHOUT_REPLY = ("personality", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention")
"""Fields that have no effect if the prompt is only counted."""
INERT = InertFields(_FIXED, _HINTS, _WITHOUT_EFFECT)

_BINDING = (
    "previous_response_id",
    "conversation",
    "instructions",
    "text",
    "tools",
    "tool_choice",
    "reasoning",
    "max_output_tokens",
    "stop",
    *CONSTRAINTS,
)
_FORMAT = "text.format"
_ELSEWHERE = {
    **constraints_elsewhere(_FORMAT),
    **dict.fromkeys(("format", "structured_outputs", "output_config"), _FORMAT),
    "stop_sequences": "stop",
    "functions": "tools",
    "reasoning_effort": "reasoning.effort",
    "thinking": "reasoning",
    "verbosity": "text.verbosity",
    "system": "instructions",
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
}
_INNER: Bindings = {
    TextConfig: Binding(TextConfig.__struct_fields__, {"schema": "format.schema"}, all_bind=True),
    TextFormat: Binding(TextFormat.__struct_fields__, {"json_schema": "schema"}, all_bind=True),
    ToolDefinition: Binding(
        ("name", "parameters", "strict", "format", "tools"),
        {**parameters_elsewhere("parameters"), "function": "name", "grammar": "format"},
    ),
    InputFormat: Binding(
        InputFormat.__struct_fields__, {"grammar": "definition", "regex": "definition"}, all_bind=True
    ),
    ToolChoice: Binding(ToolChoice.__struct_fields__, {"function": "name", "allowed_tools": "tools"}),
    AllowedTool: Binding(AllowedTool.__struct_fields__, {"function": "name"}),
    ReasoningConfig: Binding(ReasoningConfig.__struct_fields__),
}
RESPONSES = BodyKind(
    ResponsesRequest,
    INERT,
    {ResponsesRequest: Binding(_BINDING, _ELSEWHERE), **_INNER},
)
PROMPTS = BodyKind(
    PromptFields,
    InertFields(_FIXED, _HINTS, (*_WITHOUT_EFFECT, *_WITHOUT_REPLY)),
    {PromptFields: Binding(("tools", "tool_choice", "text", "input", "instructions")), **_INNER},
)
CONVERSATIONS = BodyKind(ConversationRequest, binding={ConversationRequest: Binding(("items",))})
METADATA = BodyKind(MetadataRequest)
ITEMS = BodyKind(ItemsRequest)
