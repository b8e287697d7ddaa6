"""Known fields that have no effect, that only a few values are allowed for, or that bind a response."""

from __future__ import annotations

from collections.abc import Mapping

from ...http.body_kind import Binding, Bindings, BodyKind, FieldCheck
from ...http.fixed_fields import FixedField, checks_of, without_effect
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

FIXED_FIELDS = {
    "prompt": FixedField((), "Send its text as instructions or input: no prompts are kept here."),
    "moderation": FixedField((), "Check texts in the client."),
    "context_management": FixedField(("[]",), "Ask for a summary in a message, and send that."),
    "n": FixedField(("1",), "Send several requests: they share the prompt's cache."),
    "logprobs": FixedField(("false",), 'Use include: ["message.output_text.logprobs"] and top_logprobs.'),
    "modalities": FixedField(('["text"]',), "Leave it out: responses are text only."),
    "image": FixedField((), "Leave it out: responses are text only."),
    "logit_bias": FixedField(("{}",), "Use /v1/chat/completions, which has it."),
}

HINTS = {
    "service_tier": FixedField(
        ('"auto"', '"default"'), "All requests are served alike, except for priority."
    ),
}
"""fields that a server may ignore; the log says so once"""

# Ignoring these fields changes no response, with any value.
WITHOUT_EFFECT = frozenset(
    (
        "safety_identifier",
        "max_tool_calls",
        "access_programs",
        "background_options",
        "client_metadata",
    )
)

INERT_FIELDS: Mapping[str, FieldCheck] = {
    **dict.fromkeys(WITHOUT_EFFECT, without_effect),
    **checks_of(FIXED_FIELDS, HINTS),
}

_BINDING = (
    "previous_response_id",
    "conversation",
    "instructions",
    "text",
    "tools",
    "tool_choice",
    "reasoning",
    "max_output_tokens",
    "regex",
    "choice",
    "grammar",
    "stop",
    "additional_properties",
    "property_order",
    "whitespace",
    "unenforced",
    "complete_json",
)
_OF_THE_CACHE = ("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention")
_FORMAT = "text.format"
_OF_OTHER_APIS = {
    **dict.fromkeys(("response_format", "json_schema", "guided_json", "schema", "format"), _FORMAT),
    "structured_outputs": _FORMAT,
    "output_config": _FORMAT,
    "guided_regex": "regex",
    "pattern": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "ebnf": "grammar",
    "gbnf": "grammar",
    "lark": "grammar",
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
_PARAMETERS = ("input_schema", "inputSchema", "params", "args", "arguments", "schema", "json_schema")

_INNER: Bindings = {
    TextConfig: Binding(TextConfig.__struct_fields__, {"schema": "format.schema"}, all_bind=True),
    TextFormat: Binding(TextFormat.__struct_fields__, {"json_schema": "schema"}, all_bind=True),
    ToolDefinition: Binding(
        ("name", "parameters", "strict", "format", "tools"),
        {**dict.fromkeys(_PARAMETERS, "parameters"), "function": "name", "grammar": "format"},
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
    INERT_FIELDS,
    {ResponsesRequest: Binding(_BINDING, _OF_OTHER_APIS), **_INNER},
)
PROMPTS = BodyKind(
    PromptFields,
    {**INERT_FIELDS, **dict.fromkeys(("personality", *_OF_THE_CACHE), without_effect)},
    {PromptFields: Binding(("tools", "tool_choice", "text", "input", "instructions")), **_INNER},
)
CONVERSATIONS = BodyKind(ConversationRequest, {}, {ConversationRequest: Binding(("items",))})
METADATA = BodyKind(MetadataRequest, {}, {})
ITEMS = BodyKind(ItemsRequest, {}, {})
