"""Says how much an API key may use: in the messages for the scheduler, and in the headers of answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec

from ...runtime.api_keys import Allowance, Allowances, ApiKey, Quota
from ...runtime.messages import Generate
from ...runtime.sampling_params import SamplingParams
from ..core.prepare import Job
from ..core.validation import invalid_field, tokens_in_words


def with_key_limits(job: Job, key: ApiKey) -> Job:
    """The request with the key's priority, shortest reply and quota. Raises `RequestError` (400)."""
    limited = limit_requests(job.requests, key, job.draft.fields.priority, job.prompt_tokens)
    return replace(job, requests=limited)


def limit_requests(
    requests: Sequence[Generate], key: ApiKey, priority: int | None, prompt_tokens: int
) -> list[Generate]:
    """The messages of one request, of which the first counts the tokens of all prompts."""
    priority = _choose_priority(priority, key)
    return [
        msgspec.structs.replace(
            request,
            priority=priority,
            quota=quota_of(key, prompt_tokens if number == 0 else None),
            sampling=_shorten(request.sampling, key),
        )
        for number, request in enumerate(requests)
    ]


def quota_of(key: ApiKey | None, prompt_tokens: int | None) -> Quota | None:
    """The limits of a key that the scheduler enforces; None if the key has none of them."""
    if key is None:
        return None
    limits = (key.requests_per_minute, key.tokens_per_minute, key.concurrent_requests)
    return None if limits == (None, None, None) else Quota(key.name, prompt_tokens, *limits)


def _shorten(sampling: SamplingParams, key: ApiKey) -> SamplingParams:
    if key.max_tokens is None or sampling.max_tokens <= key.max_tokens:
        return sampling
    if sampling.min_tokens > key.max_tokens:
        raise invalid_field(
            "min_tokens",
            f"is {sampling.min_tokens}, but the replies of the API key {key.name} have at most "
            f"{tokens_in_words(key.max_tokens)}: lower it",
        )
    return msgspec.structs.replace(sampling, max_tokens=key.max_tokens)


def _choose_priority(given: int | None, key: ApiKey) -> int:
    if given is None:
        return key.priority
    if key.best_priority is not None and given < key.best_priority:
        raise invalid_field(
            "priority",
            f"is {given}, but the API key {key.name} allows {key.best_priority} and higher numbers, "
            "which come later",
        )
    return given


def openai_headers(allowances: Allowances) -> Iterator[tuple[bytes, bytes]]:
    for kind, allowance in by_kind(allowances):
        yield b"x-ratelimit-limit-" + kind, b"%d" % allowance.limit
        yield b"x-ratelimit-remaining-" + kind, b"%d" % allowance.left
        yield b"x-ratelimit-reset-" + kind, _format_duration(allowance.full_in_s).encode()


def by_kind(allowances: Allowances) -> Iterator[tuple[bytes, Allowance]]:
    """Yields the key's limits with their names in headers."""
    if allowances.requests is not None:
        yield b"requests", allowances.requests
    if allowances.tokens is not None:
        yield b"tokens", allowances.tokens


def _format_duration(seconds: float) -> str:
    """A time as OpenAI writes it: 120ms, 8.5s, 6m0s."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.3g}s"
    return f"{int(seconds) // 60}m{int(seconds) % 60}s"
