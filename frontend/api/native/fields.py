"""Tables of fields: other servers' fields that have another name here, and fields that bind a reply."""

from __future__ import annotations

from ...http.body_kind import (
    CONSTRAINTS,
    Binding,
    Bindings,
    FixedField,
    InertFields,
    constraints_elsewhere,
)
from .protocol import GenerateRequest

_FIXED = {
    "sampling_params": FixedField(("{}",), "Put its fields beside the others: max_tokens, temperature …"),
    "return_logprob": FixedField(("false",), "Use logprobs: the number of alternatives, 0 for none."),
    "top_logprobs_num": FixedField(("0",), "Use logprobs: the number of alternatives."),
    "logprob_start_len": FixedField(("-1",), "Use prompt_logprobs with prompt_logprobs_start."),
    "token_ids_logprob": FixedField(("[]",), "Use logprobs."),
    "tools": FixedField(("[]",), "Use /v1/chat/completions: this path doesn't read calls."),
    "rid": FixedField((), "The reply's id is in the header x-request-id."),
    "lora_path": FixedField(),
    "input_embeds": FixedField((), "Use prompt_token_ids."),
    "image_data": FixedField(("[]",)),
    "return_hidden_states": FixedField(("false",)),
}
INERT = InertFields(_FIXED)
"""Fields of other servers, mostly SGLang's, that may only ask for the usual behaviour."""

_ELSEWHERE = {
    **constraints_elsewhere("json_schema"),
    "text": "prompt",
    "input_ids": "prompt_token_ids",
    "max_new_tokens": "max_tokens",
}
IN_GENERATE: Bindings = {GenerateRequest: Binding(("json_schema", *CONSTRAINTS), _ELSEWHERE)}
