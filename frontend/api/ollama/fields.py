"""Known fields and options that have no effect, that only a few values are allowed for, or that bind a
reply."""

from __future__ import annotations

from collections.abc import Mapping

from ...core.messages import FunctionDefinition, Tool
from ...http.body_kind import Binding, Bindings, FieldCheck
from ...http.fixed_fields import FixedField, checks_of
from .protocol import ChatRequest, GenerateRequest, Options

_TEXT_ALONE = "Leave it out: this model reads and writes text alone."

FIXED_FIELDS = {
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

HINTS = {
    "truncate": FixedField(("false",), "No turn is dropped: a prompt that is too long is refused."),
    "shift": FixedField(("false",), "A reply ends with the context."),
}
"""fields that a server may ignore; the log says so once"""

INERT_FIELDS: Mapping[str, FieldCheck] = checks_of(FIXED_FIELDS, HINTS)

_SAMPLERS = "Use temperature, top_k, top_p and min_p."
FIXED_OPTIONS = {
    "typical_p": FixedField(("1", "1.0"), _SAMPLERS),
    "tfs_z": FixedField(("1", "1.0"), _SAMPLERS),
    "mirostat": FixedField(("0",), _SAMPLERS),
    "embedding_only": FixedField(("false",)),
    "vocab_only": FixedField(("false",)),
}
"""options that are refused with other values"""

OPTIONS_WITHOUT_EFFECT = frozenset(
    (
        "repeat_last_n",
        "mirostat_eta",
        "mirostat_tau",
        "penalize_newline",
        "num_keep",
        "num_batch",
        "num_gpu",
        "main_gpu",
        "num_thread",
        "numa",
        "low_vram",
        "f16_kv",
        "logits_all",
        "use_mmap",
        "use_mlock",
    )
)

_BINDING = (
    "format",
    "options",
    "think",
    "regex",
    "choice",
    "grammar",
    "additional_properties",
    "property_order",
    "whitespace",
    "unenforced",
    "complete_json",
)
_SCHEMAS = ("response_format", "json_schema", "schema", "guided_json", "output_format")
_OF_OTHER_APIS = {
    **dict.fromkeys(_SCHEMAS, "format"),
    **{name: f"options.{name}" for name in Options.__struct_fields__},
    "max_tokens": "options.num_predict",
    "guided_regex": "regex",
    "pattern": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "ebnf": "grammar",
    "gbnf": "grammar",
    "lark": "grammar",
    "functions": "tools",
    "reasoning_effort": "think",
}
_PARAMETERS = ("input_schema", "inputSchema", "params", "args", "arguments", "schema", "json_schema")
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
    FunctionDefinition: Binding(("parameters", "strict"), dict.fromkeys(_PARAMETERS, "parameters")),
}
IN_CHATS: Bindings = {ChatRequest: Binding((*_BINDING, "tools"), _OF_OTHER_APIS), **_INNER}
IN_PROMPTS: Bindings = {GenerateRequest: Binding((*_BINDING, "raw"), _OF_OTHER_APIS), **_INNER}
