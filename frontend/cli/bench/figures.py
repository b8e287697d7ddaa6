"""The figures of a load: times of its replies, throughput, and what the cache saved."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from .client import Reply


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Times in milliseconds, as the client sees them. A time is None if no reply has it.

    `ttft` is the time to the first text, `itl` the time between two reads from the connection that brought
    text (one may bring several tokens), `e2e` the whole reply's.
    """

    requests: int
    errors: int
    prompt_tokens: int
    output_tokens: int
    tok_per_s: float
    """output tokens per second"""
    prompt_tok_per_s: float
    req_per_s: float
    ttft_p50: float | None
    ttft_p90: float | None
    itl_p50: float | None
    itl_p99: float | None
    itl_tail: float | None
    """the ratio `itl_p99` / `itl_p50`"""
    e2e_p50: float | None
    cached: float
    """the share of prompt tokens that the server found in its cache, from 0 to 1"""


def figures(replies: Sequence[Reply], seconds: float) -> Figures:
    """Computes the figures. `seconds` is the time from the first request to the last reply."""
    good = [reply for reply in replies if reply.error is None]
    gaps = [gap for reply in good for gap in reply.gaps]
    itl_p50, itl_p99 = percentile_ms(gaps, 50), percentile_ms(gaps, 99)
    output_tokens = sum(reply.output_tokens for reply in good)
    prompt_tokens = sum(reply.prompt_tokens for reply in good)
    return Figures(
        requests=len(replies),
        errors=len(replies) - len(good),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        tok_per_s=round(output_tokens / seconds, 2),
        prompt_tok_per_s=round(prompt_tokens / seconds, 1),
        req_per_s=round(len(good) / seconds, 3),
        ttft_p50=percentile_ms([reply.ttft for reply in good], 50),
        ttft_p90=percentile_ms([reply.ttft for reply in good], 90),
        itl_p50=itl_p50,
        itl_p99=itl_p99,
        itl_tail=round(itl_p99 / itl_p50, 2) if itl_p50 and itl_p99 else None,
        e2e_p50=percentile_ms([reply.finished for reply in good], 50),
        cached=round(sum(reply.cached_tokens for reply in good) / max(1, prompt_tokens), 4),
    )


def percentile_ms(seconds: Sequence[float], percent: int) -> float | None:
    if not seconds:
        return None
    ordered = sorted(seconds)
    return round(1000 * ordered[min(len(ordered) - 1, len(ordered) * percent // 100)], 1)
