"""Known fields that have no effect, that only a few values are allowed for, or that bind a reply."""

from __future__ import annotations

from collections.abc import Mapping

from ...http.body_kind import Binding, Bindings, FieldCheck
from ...http.fixed_fields import FixedField, checks_of, without_effect
from .protocol import (
    MessagesRequest,
    OutputConfig,
    OutputFormat,
    PromptRequest,
    ThinkingConfig,
    ToolChoice,
    ToolDefinition,
)

_CHAT = "Use /v1/chat/completions, which has it."

FIXED_FIELDS = {
    "container": FixedField((), "Run code in the client, as one of tools."),
    "mcp_servers": FixedField(("[]",), "Connect the client to the servers, and give their tools as tools."),
    "thread": FixedField((), "Send the whole conversation: what earlier turns computed is cached."),
    "compaction": FixedField((), "Ask for a summary in a message."),
    "n": FixedField(("1",), "Send several requests: they share the prompt's cache."),
    "logprobs": FixedField(("false",), _CHAT),
    "top_logprobs": FixedField(("0",), _CHAT),
}

HINTS = {
    "service_tier": FixedField(('"auto"', '"standard_only"'), "All requests are served alike."),
    "speed": FixedField(('"standard"',), "All requests are served alike."),
    "inference_geo": FixedField((), "Replies are computed by this server."),
}
"""fields that a server may ignore; the log says so once"""

# Ignoring these fields changes no reply, with any value.
WITHOUT_EFFECT = frozenset(
    (
        "fallbacks",
        "fallback_credit_token",
        "billing_policy",
        "user_profile_id",
        "workspace_id",
        "anthropic_version",
        "anthropic_beta",
        "betas",
    )
)

INERT_FIELDS: Mapping[str, FieldCheck] = {
    **dict.fromkeys(WITHOUT_EFFECT, without_effect),
    **checks_of(FIXED_FIELDS, HINTS),
}

_BINDING = (
    "output_config",
    "output_format",
    "stop_sequences",
    "tools",
    "tool_choice",
    "thinking",
    "context_management",
    "regex",
    "choice",
    "grammar",
    "additional_properties",
    "property_order",
    "whitespace",
    "unenforced",
    "complete_json",
)
_SCHEMA = "output_config.format"
_OF_OTHER_APIS = {
    **dict.fromkeys(("response_format", "json_schema", "guided_json", "schema", "format"), _SCHEMA),
    "structured_outputs": _SCHEMA,
    "guided_regex": "regex",
    "pattern": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "ebnf": "grammar",
    "gbnf": "grammar",
    "lark": "grammar",
    "stop": "stop_sequences",
    "functions": "tools",
    "reasoning_effort": "output_config.effort",
}
_PARAMETERS = ("parameters", "inputSchema", "params", "args", "arguments", "schema", "json_schema")

_INNER: Bindings = {
    OutputConfig: Binding(OutputConfig.__struct_fields__, {"schema": "format.schema"}, all_bind=True),
    OutputFormat: Binding(OutputFormat.__struct_fields__, {"json_schema": "schema"}, all_bind=True),
    ToolDefinition: Binding(("input_schema", "strict"), dict.fromkeys(_PARAMETERS, "input_schema")),
    ToolChoice: Binding(ToolChoice.__struct_fields__, {"function": "name"}),
    ThinkingConfig: Binding(ThinkingConfig.__struct_fields__),
}
IN_MESSAGES: Bindings = {MessagesRequest: Binding(_BINDING, _OF_OTHER_APIS), **_INNER}
IN_PROMPTS: Bindings = {PromptRequest: Binding(("tools", "tool_choice", "thinking")), **_INNER}
