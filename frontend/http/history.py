"""Keeps the last hour of the metrics that the page at / plots, so that a page opened now shows it."""

from __future__ import annotations

import asyncio
import logging
import math
import struct
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TypeAlias, get_args

from msgspec import Struct

from ...runtime.messages import DRAFT_SOURCES, Stats
from ..core.cache_misses.causes import Cause
from ..core.replica.engine_client import EngineClient
from ..core.replica.merging import merge_stats
from .metrics import Metrics

log = logging.getLogger(__name__)
INTERVAL_S = 5.0
WINDOW_SAMPLES = 4  # intervals that rates and quantiles are of
MAX_MINUTES = 60
MAX_SAMPLES = int(MAX_MINUTES * 60 / INTERVAL_S)
CAUSES: tuple[str, ...] = get_args(Cause)
STATUSES = (400, 401, 404, 429, 500, 503)
"""Statuses of errors that have a series of their own; others are counted together."""
_ERRORS = (*(f"errors_{status}" for status in STATUSES), "errors_4xx", "errors_5xx")
SERIES = (
    "first_token_p50",
    "first_token_p95",
    "between_tokens_p50",
    "between_tokens_p95",
    "output_tokens",
    "prompt_tokens_computed",
    "prompt_tokens_cached",
    "hit_rate",
    "tokens_a_step",
    "drafts_accepted",
    *(f"missed_{cause}" for cause in CAUSES),
    *_ERRORS,
    "requests_running",
    "requests_waiting",
    "pages_free",
    "pages_cached",
    "pages_locked",
    "pages_pinned",
    "pages_host",
    "pages_disk",
)
"""The series of the page. Latencies are in seconds. Tokens, missed tokens and errors count per second.
`tokens_a_step` counts the tokens that a reply got in a step, and `drafts_accepted` is a share; both are null
without drafts."""
_HISTOGRAMS = {
    "first_token": "arbora_time_to_first_token_seconds_bucket",
    "between_tokens": "arbora_inter_token_latency_seconds_bucket",
}
_FIRST_COUNTERS = ("output_tokens", "prompt_tokens_computed", "prompt_tokens_cached")
_sample = struct.Struct(f"{len(SERIES)}f")
Counts: TypeAlias = Mapping[tuple[str, str], float]
"""Values of counters by their name and the value of their label"""


class ShownHistory(Struct):
    """The values of each plotted series at `times`, in seconds since 1970. An unknown value is null."""

    interval_s: float
    times: list[float]
    series: dict[str, list[float | None]]


class History:
    """A ring of samples: `MAX_SAMPLES` times 4 bytes for each series, and the time."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._samples: deque[tuple[float, bytes]] = deque(maxlen=MAX_SAMPLES)
        self._window: deque[tuple[float, Counts]] = deque(maxlen=WINDOW_SAMPLES + 1)

    async def keep(self, engines: Sequence[EngineClient]) -> None:
        """Takes a sample after each interval until cancelled."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            answers = await self._metrics.update(engines)
            stats = merge_stats([each.stats for each in answers]) if answers else None
            try:
                self.add(time.time(), stats)
            except Exception:  # no descriptor is left, or another process is creating its file
                log.debug("the metrics could not be read, so the history lacks a sample", exc_info=True)

    def add(self, now: float, stats: Stats | None) -> None:
        """Adds a sample. `stats` are the scheduler's; None if it does not answer."""
        self._window.append((now, self._metrics.read_counts()))
        (start, before), (_, after) = self._window[0], self._window[-1]
        values = chain(_measure(before, after, now - start), _list_gauges(stats))
        self._samples.append((round(now, 3), _sample.pack(*values)))

    def show(self, minutes: int, after: float, now: float) -> ShownHistory:
        """The samples of the last minutes that are later than `after`. May be called on any thread."""
        since = max(now - 60 * minutes, after)
        kept = list(self._samples)  # a copy, because the event loop adds samples meanwhile
        shown = [each for each in kept if each[0] > since]
        samples = [_sample.unpack(each) for _, each in shown]
        series = {name: [_shorten(each[i]) for each in samples] for i, name in enumerate(SERIES)}
        return ShownHistory(INTERVAL_S, [at for at, _ in shown], series)


def _shorten(value: float) -> float | None:
    return None if math.isnan(value) else float(f"{value:.4g}") if abs(value) < 1000 else round(value)


def _measure(before: Counts, after: Counts, seconds: float) -> Iterator[float]:
    """The series that are made of counters. Without an earlier sample their values are unknown."""
    grown = {key: _grow(before.get(key, 0.0), value) for key, value in after.items()}

    def rate(keys: Iterable[tuple[str, str]]) -> float:
        return sum(grown.get(key, 0.0) for key in keys) / seconds if seconds else math.nan

    for name in _HISTOGRAMS.values():
        buckets = sorted((float(end), count) for (each, end), count in grown.items() if each == name)
        yield from (find_quantile(buckets, q) if seconds else math.nan for q in (0.5, 0.95))
    yield from (rate([(f"arbora_{name}_total", "")]) for name in _FIRST_COUNTERS)
    looked_up = grown.get(("arbora_prompt_tokens_looked_up_total", ""), 0.0)
    cached = grown.get(("arbora_prompt_tokens_cached_total", ""), 0.0)
    yield cached / looked_up if looked_up and seconds else math.nan
    yield from _measure_drafts(grown) if seconds else (math.nan, math.nan)
    yield from (rate([("arbora_prompt_tokens_missed_total", cause)]) for cause in CAUSES)
    failed = [key for key in grown if key[0] == "arbora_requests_failed_total"]
    yield from (rate(key for key in failed if _name_error(key[1]) == name) for name in _ERRORS)


def _measure_drafts(grown: Counts) -> tuple[float, float]:
    """The tokens that a reply got in a step, and the share of accepted drafts; NaN without drafts."""
    drafted, accepted = (
        sum(grown.get((f"arbora_{kind}_tokens_total", source), 0.0) for source in DRAFT_SOURCES)
        for kind in ("drafted", "accepted")
    )
    steps = grown.get(("arbora_reply_steps_total", ""), 0.0)
    return (1 + accepted / steps, accepted / drafted) if drafted and steps else (math.nan, math.nan)


def _list_gauges(stats: Stats | None) -> Iterator[float]:
    """The values that the scheduler reports now: requests and pages, in the order of `SERIES`."""
    if stats is None:
        yield from [math.nan] * 8
        return
    yield from (stats.running, stats.waiting)
    yield stats.pages_total - stats.pages_used - stats.pages_cached
    yield stats.pages_cached
    yield max(0, stats.pages_used - stats.pages_pinned)
    yield from (stats.pages_pinned, stats.store.host_pages, stats.store.disk_pages)


def _grow(before: float, after: float) -> float:
    """How much a counter has grown. A counter that is smaller than before has begun anew."""
    return after - before if after >= before else after


def _name_error(status: str) -> str:
    return f"errors_{status}" if int(status) in STATUSES else f"errors_{status[0]}xx"


def find_quantile(buckets: list[tuple[float, float]], q: float) -> float:
    """The q-quantile of a histogram's observations, NaN if there are none. `buckets` are ends and cumulated
    counts. Within a bucket observations count as evenly spread; the last has no end, so its beginning is
    returned."""
    wanted = q * (buckets[-1][1] if buckets else 0)
    if not wanted:
        return math.nan
    begin = seen = 0.0
    for end, count in buckets:
        if count >= wanted:
            return begin if math.isinf(end) else begin + (end - begin) * (wanted - seen) / (count - seen)
        begin, seen = end, count
    return begin
