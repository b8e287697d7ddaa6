"""What servers with OpenAI's API can do beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec


class ServerKind(msgspec.Struct, frozen=True):
    """`structured`: has the field `structured_outputs`. `scores`: has `prompt_logprobs` and /tokenize.
    `scores_from`: has `prompt_logprobs_start`. `continues`: has `continue_final_message`. `arbora_fields`:
    has the sampling fields that only Arbora has. `least_tokens`: the least that `max_tokens` may be."""

    name: str
    structured: bool = False
    scores: bool = False
    scores_from: bool = False
    continues: bool = False
    arbora_fields: bool = False
    least_tokens: int = 1


ARBORA = ServerKind("Arbora", True, True, True, True, True, 0)
VLLM = ServerKind("vLLM", True, True, False, True)
OTHER = ServerKind("this server")
_KINDS = {"arbora": ARBORA, "vllm": VLLM}
_ARBORA_FIELDS = ("property_order", "unenforced", "complete_json", "cache_prompt")


class UnsupportedError(Exception):
    """The server does not have what a statement needs."""


def kind_of(owner: str) -> ServerKind:
    """`owner`: the `owned_by` of the server's models."""
    return _KINDS.get(owner, OTHER)


def fields_for(kind: ServerKind, sampling: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request. Raises `UnsupportedError` for one that the server lacks."""
    fields = dict(sampling)
    if not kind.arbora_fields:
        fields.pop("cache_lease", None)  # it changes no reply
    for name in _ARBORA_FIELDS:
        if name in fields and not kind.arbora_fields:
            raise UnsupportedError(f"{kind.name} does not have {name}: leave it out, or connect to Arbora.")
    if (schema := fields.pop("json_schema", None)) is not None:
        fields["response_format"] = (
            {"type": "json_object"}
            if schema is True
            else {"type": "json_schema", "json_schema": {"name": "reply", "strict": True, "schema": schema}}
        )
    for ours, theirs in (("regex", "regex"), ("choices", "choice"), ("grammar", "grammar")):
        if (value := fields.pop(ours, None)) is not None:
            if not kind.structured:
                raise UnsupportedError(
                    f"{kind.name} is not known to constrain replies by {ours}: use json_schema, or "
                    "connect to Arbora."
                )
            fields["structured_outputs"] = {theirs: value}
    return fields
