"""The fields that say how a request's replies are sampled and cached, in every wire format."""

from __future__ import annotations

from msgspec import Struct

JsonObject = dict[str, object]


class CacheLease(Struct, kw_only=True):
    """Arbora's field `cache_lease`: the prompt and the reply stay cached for `ttl_s` seconds.

    A later request with the same `key` replaces the lease, or with `most` above 1 keeps that many.
    """

    ttl_s: float
    key: str | None = None
    most: int | None = None


class SamplingFields(Struct, kw_only=True):
    """Types only: `validation` checks the ranges. None means that the field is absent."""

    max_tokens: int | None = None
    min_tokens: int | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: int | None = None
    prompt_logprobs_start: int | None = None
    property_order: str | None = None
    unenforced: str | None = None
    complete_json: bool | None = None
    cache_salt: str | None = None
    cache_prompt: bool | None = None
    cache_lease: CacheLease | None = None
    priority: int | None = None
