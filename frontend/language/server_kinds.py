"""The abilities of servers with OpenAI's API that go beyond this API."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ..engine.sampling import ReplyOptions
from .errors import BackendError


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


class ServerKind(msgspec.Struct, frozen=True, kw_only=True):
    """The abilities of a kind of server beyond OpenAI's API.

    `fields`: the names of further fields. `structured`, `scores_from`, `continues`, `sessions`: whether the
    server takes `structured_outputs`, `prompt_logprobs_start`, `continue_final_message` and `cache_lease`.
    `scores`: whether it takes `prompt_logprobs` and has the path /tokenize. `least_tokens`: the smallest
    `max_tokens` that it accepts.
    """

    name: str
    fields: frozenset[str] = frozenset()
    structured: bool = False
    scores: bool = False
    scores_from: bool = False
    continues: bool = False
    sessions: bool = False
    least_tokens: int = 1


_CONSTRAINTS = {"regex": "regex", "choices": "choice", "grammar": "grammar"}
"""The names of constraints in `structured_outputs`, and among Arbora's fields."""
_OPENAI_FIELDS = _words(
    "max_tokens stop temperature seed top_p presence_penalty frequency_penalty logit_bias tools tool_choice "
    "response_format"
)
_CHAT_FIELDS = _words("tools tool_choice chat_template_kwargs")
_LLAMA_CPP_FIELDS = _words("top_k min_p ignore_eos chat_template_kwargs")
_SGLANG_FIELDS = _LLAMA_CPP_FIELDS | _words(
    "min_tokens repetition_penalty stop_token_ids skip_special_tokens cache_salt priority"
)
_VLLM_FIELDS = _SGLANG_FIELDS | _words("include_stop_str_in_output")
_ARBORA_FIELDS = frozenset(
    {*ReplyOptions.__annotations__, *_CONSTRAINTS.values(), "chat_template_kwargs", "cache_lease"}
)
ARBORA = ServerKind(
    name="Arbora",
    fields=_ARBORA_FIELDS,
    structured=True,
    scores=True,
    scores_from=True,
    continues=True,
    sessions=True,
    least_tokens=0,
)
VLLM = ServerKind(name="vLLM", fields=_VLLM_FIELDS, structured=True, scores=True, continues=True)
SGLANG = ServerKind(name="SGLang", fields=_SGLANG_FIELDS | {"regex"}, continues=True)
LLAMA_CPP = ServerKind(name="llama.cpp", fields=_LLAMA_CPP_FIELDS | {"grammar"})
OTHER = ServerKind(name="this server")
_KINDS = {"arbora": ARBORA, "vllm": VLLM, "sglang": SGLANG, "llamacpp": LLAMA_CPP}


class UnsupportedError(Exception):
    """The server lacks an ability that a statement needs."""


def kind_of(owner: str) -> ServerKind:
    """The kind of a server whose models have `owner` as their `owned_by`."""
    return _KINDS.get(owner, OTHER)


def fields_for(kind: ServerKind, sampling: Mapping[str, Any], *, is_chat: bool) -> dict[str, Any]:
    """The fields of a request. Raises `UnsupportedError` for one that the server lacks."""
    fields = dict(sampling)
    if not kind.sessions:
        fields.pop("cache_lease", None)  # it changes no reply, so it can be left out
    if has_choices_as_json(kind, sampling):
        choices = fields.pop("choices")
        fields.pop("stop", None)  # a stop string could cut the JSON, and so could `max_tokens`
        if "max_tokens" in fields:
            fields["max_tokens"] = max(fields["max_tokens"], most_tokens(choices))
        fields["json_schema"] = choice_schema(choices)
    if (schema := fields.pop("json_schema", None)) is not None:
        if not is_chat and not kind.structured:
            raise UnsupportedError(
                f"{kind.name} is not known to constrain replies outside of a chat: put gen into "
                "arbora.assistant(…), or connect to Arbora."
            )
        fields["response_format"] = (
            {"type": "json_object"}
            if schema is True
            else {"type": "json_schema", "json_schema": {"name": "reply", "strict": True, "schema": schema}}
        )
    for ours, theirs in _CONSTRAINTS.items():
        if kind.structured and ours in fields:
            wanted = {theirs: fields.pop(ours)}
            fields.update(wanted if theirs in kind.fields else {"structured_outputs": wanted})
    known = _OPENAI_FIELDS | kind.fields | {"structured_outputs"}
    for name in fields:
        if name not in known:
            raise UnsupportedError(_lacks(kind, name))
        if name in _CHAT_FIELDS and not is_chat:
            raise UnsupportedError(f"{name} needs a chat: put gen into arbora.assistant(…).")
    return fields


def has_choices_as_json(kind: ServerKind, sampling: Mapping[str, Any]) -> bool:
    """Whether to ask for a JSON object with the choice, because the server can't constrain replies to
    texts."""
    return "choices" in sampling and not kind.structured


def _lacks(kind: ServerKind, name: str) -> str:
    others = [
        each.name
        for each in _KINDS.values()
        if name in each.fields or (each.structured and name in _CONSTRAINTS)
    ]
    instead = "use json_schema" if name in _CONSTRAINTS else "leave it out"
    return f"{kind.name} is not known to have {name}: {instead}, or connect to {' or '.join(others)}."


class _Chosen(msgspec.Struct):
    choice: str


def choice_schema(choices: Sequence[str]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"choice": {"type": "string", "enum": list(choices)}},
        "required": ["choice"],
        "additionalProperties": False,
    }


def most_tokens(choices: Sequence[str]) -> int:
    """The most tokens that the object with one of the choices needs. A token is at least one byte of JSON,
    which is longest if it is indented and escapes all characters outside of ASCII."""
    return max((len(json.dumps({"choice": choice}, indent=4)) for choice in choices), default=0)


def read_choice(text: str, choices: Sequence[str]) -> str:
    """The choice in a reply. Raises `BackendError` if the reply has none of the choices."""
    with contextlib.suppress(msgspec.DecodeError):
        if (choice := msgspec.json.decode(text, type=_Chosen).choice) in choices:
            return choice
    raise BackendError(
        f"the server replies {text[:60]!r} though it is asked for a JSON object with one of the choices: it "
        "does not enforce the schema in response_format, so it can't be used for choices."
    )
