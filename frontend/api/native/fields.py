"""Fields of other servers that have another name here, and those that bind a reply."""

from __future__ import annotations

from collections.abc import Mapping

from ...http.body_kind import Binding, Bindings, FieldCheck
from ...http.fixed_fields import FixedField, checks_of
from .protocol import GenerateRequest

FIXED_FIELDS = {
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
"""fields of other servers, mostly SGLang's"""

INERT_FIELDS: Mapping[str, FieldCheck] = checks_of(FIXED_FIELDS, {})

_BINDING = (
    "json_schema",
    "regex",
    "choice",
    "grammar",
    "additional_properties",
    "property_order",
    "whitespace",
    "unenforced",
    "complete_json",
)
_OF_OTHER_SERVERS = {
    "text": "prompt",
    "input_ids": "prompt_token_ids",
    "max_new_tokens": "max_tokens",
    "response_format": "json_schema",
    "guided_json": "json_schema",
    "schema": "json_schema",
    "guided_regex": "regex",
    "pattern": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "ebnf": "grammar",
}
IN_GENERATE: Bindings = {GenerateRequest: Binding(_BINDING, _OF_OTHER_SERVERS)}
