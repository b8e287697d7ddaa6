"""Applies the limits of a request's API key to the messages for the scheduler."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from ...runtime.api_keys import ApiKey, Quota
from ...runtime.errors import RequestError
from ..request.prepare import PreparedRequest


def with_key_limits(prepared: PreparedRequest, key: ApiKey) -> PreparedRequest:
    """The request with the key's priority, shortest reply and quota. Raises `RequestError` (400)."""
    priority = _priority(prepared.fields.priority, key)
    requests = [
        msgspec.structs.replace(
            request,
            priority=priority,
            quota=quota_of(key, prepared.prompt_tokens if number == 0 else None),
            sampling=request.sampling
            if key.max_tokens is None
            else msgspec.structs.replace(
                request.sampling, max_tokens=min(request.sampling.max_tokens, key.max_tokens)
            ),
        )
        for number, request in enumerate(prepared.requests)
    ]
    return replace(prepared, requests=requests)


def quota_of(key: ApiKey | None, prompt_tokens: int | None) -> Quota | None:
    """The limits that the scheduler keeps; None if the key has none of them."""
    if key is None:
        return None
    limits = (key.requests_per_minute, key.tokens_per_minute, key.concurrent_requests)
    return None if limits == (None, None, None) else Quota(key.name, prompt_tokens, *limits)


def _priority(given: int | None, key: ApiKey) -> int:
    if given is None:
        return key.priority
    if key.best_priority is not None and given < key.best_priority:
        raise RequestError(
            f"priority is {given}, but the API key {key.name} allows {key.best_priority} and higher numbers, "
            "which come later.",
            param="priority",
            code="invalid_value",
        )
    return given
