"""Tables of the fields that have no effect, allow few values, or bind what a reply may be."""

from __future__ import annotations

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
    MessagesRequest,
    OutputConfig,
    OutputFormat,
    PromptRequest,
    ThinkingConfig,
    ToolChoice,
    ToolDefinition,
)

_CHAT = "Use /v1/chat/completions, which has it."

_FIXED = {
    "container": FixedField((), "Run code in the client, as one of tools."),
    "mcp_servers": FixedField(("[]",), "Connect the client to the servers, and give their tools as tools."),
    "thread": FixedField((), "Send the whole conversation: what earlier turns computed is cached."),
    "compaction": FixedField((), "Ask for a summary in a message."),
    "n": FixedField(("1",), "Send several requests: they share the prompt's cache."),
    "logprobs": FixedField(("false",), _CHAT),
    "top_logprobs": FixedField(("0",), _CHAT),
}
_HINTS = {
    "service_tier": FixedField(('"auto"', '"standard_only"'), "All requests are served alike."),
    "speed": FixedField(('"standard"',), "All requests are served alike."),
    "inference_geo": FixedField((), "Replies are computed by this server."),
}
_WITHOUT_EFFECT = (
    "fallbacks",
    "fallback_credit_token",
    "billing_policy",
    "user_profile_id",
    "workspace_id",
    "anthropic_version",
    "anthropic_beta",
    "betas",
)
INERT = InertFields(_FIXED, _HINTS, _WITHOUT_EFFECT)

_BINDING = (
    "output_config",
    "output_format",
    "stop_sequences",
    "tools",
    "tool_choice",
    "thinking",
    "context_management",
    *CONSTRAINTS,
)
_SCHEMA = "output_config.format"
_ELSEWHERE = {
    **constraints_elsewhere(_SCHEMA),
    "format": _SCHEMA,
    "structured_outputs": _SCHEMA,
    "stop": "stop_sequences",
    "functions": "tools",
    "reasoning_effort": "output_config.effort",
}
_INNER: Bindings = {
    OutputConfig: Binding(OutputConfig.__struct_fields__, {"schema": "format.schema"}, all_bind=True),
    OutputFormat: Binding(OutputFormat.__struct_fields__, {"json_schema": "schema"}, all_bind=True),
    ToolDefinition: Binding(("input_schema", "strict"), parameters_elsewhere("input_schema")),
    ToolChoice: Binding(ToolChoice.__struct_fields__, {"function": "name"}),
    ThinkingConfig: Binding(ThinkingConfig.__struct_fields__),
}
IN_MESSAGES: Bindings = {MessagesRequest: Binding(_BINDING, _ELSEWHERE), **_INNER}
IN_PROMPTS: Bindings = {PromptRequest: Binding(("tools", "tool_choice", "thinking")), **_INNER}
