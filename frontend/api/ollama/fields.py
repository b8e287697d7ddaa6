"""Tables of fields and options: without effect, with few allowed values, or binding a reply."""

from __future__ import annotations

from ...core.messages import FunctionDefinition, Tool
from ...http.body_kind import (
    CONSTRAINTS,
    Binding,
    Bindings,
    FixedField,
    InertFields,
    constraints_elsewhere,
    parameters_elsewhere,
)
from .protocol import ChatRequest, GenerateRequest, Options

_TEXT_ALONE = "Leave it out: this model reads and writes text alone."

_FIXED = {
    "suffix": FixedField(
        ('""',), "Write it into a raw prompt, in the model's own form for filling in the middle."
    ),
    "template": FixedField(('""',), "The model's own is used: render the prompt in the client, with raw."),
    "context": FixedField(("[]",), "Use /api/chat: what earlier turns computed is cached."),
    "images": FixedField(("[]",), _TEXT_ALONE),
    "width": FixedField(("0",), _TEXT_ALONE),
    "height": FixedField(("0",), _TEXT_ALONE),
    "steps": FixedField(("0",), _TEXT_ALONE),
    "debug_render_only": FixedField(("false",), "POST /tokenize gives the prompt's tokens."),
}
_HINTS = {
    "truncate": FixedField(("false",), "No turn is dropped: a prompt that is too long is refused."),
    "shift": FixedField(("false",), "A reply ends with the context."),
}
INERT = InertFields(_FIXED, _HINTS)

_SAMPLERS = "Use temperature, top_k, top_p and min_p."
FIXED_OPTIONS = {
    "typical_p": FixedField(("1", "1.0"), _SAMPLERS),
    "tfs_z": FixedField(("1", "1.0"), _SAMPLERS),
    "mirostat": FixedField(("0",), _SAMPLERS),
    "embedding_only": FixedField(("false",)),
    "vocab_only": FixedField(("false",)),
}
"""Options that are refused with unusual values. The other `Raw` options never change a reply."""

_BINDING = ("format", "options", "think", *CONSTRAINTS)
_ELSEWHERE = {
    **constraints_elsewhere("format"),
    "output_format": "format",
    **{name: f"options.{name}" for name in Options.__struct_fields__},
    "max_tokens": "options.num_predict",
    "functions": "tools",
    "reasoning_effort": "think",
}
_IN_OPTIONS = {
    "max_tokens": "num_predict",
    "max_new_tokens": "num_predict",
    "n_predict": "num_predict",
    "repetition_penalty": "repeat_penalty",
    "num_context": "num_ctx",
}
_INNER: Bindings = {
    Options: Binding(Options.__struct_fields__, _IN_OPTIONS, only_known=True),
    Tool: Binding(Tool.__struct_fields__, {"parameters": "function.parameters"}),
    FunctionDefinition: Binding(("parameters", "strict"), parameters_elsewhere("parameters")),
}
IN_CHATS: Bindings = {ChatRequest: Binding((*_BINDING, "tools"), _ELSEWHERE), **_INNER}
IN_PROMPTS: Bindings = {GenerateRequest: Binding((*_BINDING, "raw"), _ELSEWHERE), **_INNER}
