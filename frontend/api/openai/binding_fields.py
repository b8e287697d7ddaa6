"""OpenAI's binding fields: if a misspelt one were ignored, the reply would not match it."""

from __future__ import annotations

from ...core.messages import (
    AllowedTool,
    AllowedTools,
    FunctionDefinition,
    FunctionName,
    Tool,
    ToolChoice,
)
from ...http.body_kind import Binding, Bindings
from .protocol import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    JsonSchemaFormat,
    PinRequest,
    ResponseFormat,
    StructuredOutputs,
    TokenizeRequest,
)

CONSTRAINTS = (
    "response_format",
    "structured_outputs",
    "regex",
    "guided_regex",
    "choice",
    "guided_choice",
    "json_schema",
    "guided_json",
    "grammar",
    "guided_grammar",
    "ebnf",
    "complete_json",
    "additional_properties",
    "property_order",
    "whitespace",
    "unenforced",
)
_OF_OTHER_SERVERS = {
    "guided_schema": "json_schema",
    "schema": "json_schema",
    "json": "json_schema",
    "output_format": "response_format",
    "pattern": "regex",
    "regular_expression": "regex",
    "enum": "choice",
    "lark": "grammar",
    "gbnf": "grammar",
}

_PARAMETERS = ("input_schema", "inputSchema", "params", "args", "arguments", "schema", "json_schema")

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
    FunctionDefinition: Binding(("parameters", "strict"), dict.fromkeys(_PARAMETERS, "parameters")),
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

IN_COMPLETIONS: Bindings = {CompletionRequest: Binding(CONSTRAINTS, _OF_OTHER_SERVERS), **_FORMATS}
IN_CHATS: Bindings = {
    ChatRequest: Binding((*CONSTRAINTS, "tools", "tool_choice"), _OF_OTHER_SERVERS),
    **_FORMATS,
    **_TOOLS,
}
IN_PROMPTS: Bindings = {TokenizeRequest: _PROMPT, PinRequest: _PROMPT}
IN_TOKENS: Bindings = {DetokenizeRequest: _TOKENS}
