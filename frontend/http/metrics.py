"""The metrics that operators scrape: measurements of this process, and the scheduler's counters."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ...runtime.errors import RequestError
from ...runtime.messages import LeaseKind, Stats
from ..replica.generation import Arrival
from ..request.reply import Usage
from ..text.prompt_memo import PromptMemo

_FIRST_TOKEN_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120)
_BETWEEN_TOKENS_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5)
_REQUEST_BUCKETS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800)

_GAUGES = {
    "running": ("arbora_requests_running", "Requests that take part in steps."),
    "waiting": ("arbora_requests_waiting", "Requests that wait to start."),
    "pages_total": ("arbora_kv_pages", "Pages of KV cache."),
    "pages_used": ("arbora_kv_pages_used", "Pages held by running requests."),
    "pages_pinned": ("arbora_kv_pages_pinned", "Pages that clients have pinned; used ones are among them."),
    "pages_leased": (
        "arbora_kv_pages_leased",
        "Pages that leases protect; they are among the used or the cached ones.",
    ),
    "pages_cached": ("arbora_kv_pages_cached", "Pages that only the radix tree holds."),
}
_STORE_GAUGES = {
    "host_pages": ("arbora_host_cache_pages", "Pages kept in host memory."),
    "host_bytes": ("arbora_host_cache_bytes", "Host memory they take."),
    "disk_pages": ("arbora_disk_cache_pages", "Pages kept on disk."),
    "disk_bytes": ("arbora_disk_cache_bytes", "Disk space they take."),
}
_STORE_COUNTERS = {
    "saved_pages": ("arbora_pages_saved", "Pages copied from the KV cache to host memory."),
    "lost_pages": ("arbora_pages_lost", "Pages not saved because host memory was full at that time."),
    "host_hits": ("arbora_host_cache_hits", "Pages that prompts found in host memory."),
    "disk_hits": ("arbora_disk_cache_hits", "Pages that prompts found on disk."),
    "remote_hits": ("arbora_remote_cache_hits", "Pages that prompts found in the remote cache."),
    "restored_pages": ("arbora_pages_restored", "Pages copied back into the KV cache."),
}
_COUNTERS = {
    "prompt_tokens_cached": ("arbora_prompt_tokens_cached", "Prompt tokens whose KV was in the cache."),
    "prompt_tokens_computed": ("arbora_prompt_tokens_computed", "Prompt tokens that were computed."),
    "output_tokens": ("arbora_output_tokens", "Tokens generated."),
    "forced_tokens": ("arbora_jump_forward_tokens", "Output tokens that a grammar left no choice about."),
    "retractions": ("arbora_retractions", "Requests returned to the queue because pages ran short."),
    "evicted_pages": ("arbora_evicted_pages", "Cached pages evicted to make space for others."),
    "broken_leases": (
        "arbora_leases_broken",
        "Leases that ended early because pages or the quota ran short.",
    ),
    "steps": ("arbora_steps", "Steps of the model."),
}


class SchedulerStats:
    """The scheduler's last counters. A new replica counts from zero; the totals here include earlier
    replicas."""

    def __init__(self) -> None:
        self._last: Stats | None = None
        self._epoch = 0
        self._before: dict[str, int] = dict.fromkeys(_COUNTERS | _STORE_COUNTERS, 0)

    def update(self, stats: Stats | None, epoch: int) -> None:
        """Takes the counters of the replica of `epoch`; None when no replica answers."""
        if epoch != self._epoch:
            self._before = self._totals()
            self._last, self._epoch = None, epoch
        self._last = stats or self._last

    def _totals(self) -> dict[str, int]:
        if self._last is None:
            return self._before
        now = {name: getattr(self._last, name) for name in _COUNTERS}
        now |= {name: getattr(self._last.store, name) for name in _STORE_COUNTERS}
        return {name: self._before[name] + count for name, count in now.items()}

    def collect(self) -> Iterator[Metric]:
        """Prometheus' collector interface."""
        if self._last is not None:
            for field, (name, documentation) in _GAUGES.items():
                yield GaugeMetricFamily(name, documentation, value=getattr(self._last, field))
            for field, (name, documentation) in _STORE_GAUGES.items():
                yield GaugeMetricFamily(name, documentation, value=getattr(self._last.store, field))
            leases = GaugeMetricFamily("arbora_leases", "Leases on cached prefixes.", labels=["kind"])
            for kind in get_args(LeaseKind):
                leases.add_metric([kind], self._last.leases.get(kind, 0))
            yield leases
            free = self._last.pages_total - self._last.pages_used - self._last.pages_cached
            yield GaugeMetricFamily("arbora_kv_pages_free", "Pages that hold nothing.", value=free)
        totals = self._totals()
        for field, (name, documentation) in (_COUNTERS | _STORE_COUNTERS).items():
            yield CounterMetricFamily(name, documentation, value=totals[field])


class MemoStats:
    """Counters of this process's prompt memo."""

    def __init__(self, memo: PromptMemo) -> None:
        self._memo = memo

    def collect(self) -> Iterator[Metric]:
        """Prometheus' collector interface."""
        yield CounterMetricFamily(
            "arbora_prompt_tokens_remembered",
            "Prompt tokens reused from earlier turns, not tokenized again.",
            value=self._memo.tokens_remembered,
        )
        yield CounterMetricFamily(
            "arbora_prompt_tokens_rewritten",
            "Tokens of earlier turns that were lost because a prompt has other text in a reply's place.",
            value=self._memo.tokens_rewritten,
        )
        yield GaugeMetricFamily(
            "arbora_prompt_memo_bytes",
            "Memory that remembered prompts and replies take.",
            value=self._memo.bytes_used,
        )


class Metrics:
    """One registry for each process."""

    def __init__(self, memo: PromptMemo) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(MemoStats(memo))
        self.scheduler = SchedulerStats()
        self._registry.register(self.scheduler)
        self.first_token = self._histogram(
            "arbora_time_to_first_token_seconds", "From the request to its first token.", _FIRST_TOKEN_BUCKETS
        )
        self.between_tokens = self._histogram(
            "arbora_inter_token_latency_seconds", "Between a choice's outputs.", _BETWEEN_TOKENS_BUCKETS
        )
        self.request = self._histogram(
            "arbora_request_duration_seconds", "From the request to its last token.", _REQUEST_BUCKETS
        )
        self.prompt_tokens = self._counter(
            "arbora_request_prompt_tokens", "Prompt tokens of served requests."
        )
        self.completion_tokens = self._counter(
            "arbora_request_completion_tokens", "Completion tokens of served requests."
        )
        self.missed = self._counter(
            "arbora_prompt_tokens_missed",
            "Prompt tokens that this process found not in the cache, by cause (docs/cache_misses.md).",
            ("cause",),
        )
        self.finished = self._counter(
            "arbora_choices_finished",
            "Choices by finish reason; abort means that the client disconnected.",
            ("reason",),
        )
        self.failed = self._counter(
            "arbora_requests_failed", "Requests by error status, in streams too.", ("status",)
        )

    def exposition(self) -> bytes:
        return generate_latest(self._registry)

    def _histogram(self, name: str, documentation: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, documentation, buckets=buckets, registry=self._registry)

    def _counter(self, name: str, documentation: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(name, documentation, labels, registry=self._registry)


class RequestTimer:
    """Measures one request's latencies from the arrival times of its outputs, and records how it ended."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._started = time.monotonic()
        self._last: dict[int, float] = {}
        self._first_token: float | None = None
        self._usage: Usage | None = None
        self._ends: list[str] = []
        self._code: str | None = None

    def output(self, arrival: Arrival) -> None:
        if not arrival.output.tokens:
            return
        previous = self._last.get(arrival.choice)
        if previous is not None:
            self._metrics.between_tokens.observe(arrival.time - previous)
        elif not self._last:
            self._first_token = arrival.time - self._started
            self._metrics.first_token.observe(self._first_token)
        self._last[arrival.choice] = arrival.time

    def finished(self, usage: Usage, reasons: list[str]) -> None:
        self._usage, self._ends = usage, reasons
        self._metrics.request.observe(time.monotonic() - self._started)
        self._metrics.prompt_tokens.inc(usage.prompt_tokens)
        self._metrics.completion_tokens.inc(usage.completion_tokens)
        for reason in reasons:
            self._metrics.finished.labels(reason).inc()

    def reached(self, usage: Usage) -> None:
        """Records the usage so far for the log, because the request may end early."""
        self._usage = usage

    def failed(self, error: RequestError) -> None:
        """Records a failure after a stream began, so the response's own status was 200."""
        self._ends = [f"error-{error.status}"]
        self._code = error.code
        self._metrics.failed.labels(error.status).inc()

    def aborted(self, choices: int) -> None:
        """Records that the client disconnected before the request's last choice ended."""
        self._ends = ["abort"]
        self._metrics.finished.labels("abort").inc(choices)

    def log_fields(self) -> list[str]:
        """The request's numbers as `name=value`, for a log."""
        parts = []
        if self._usage is not None:
            parts += [f"prompt={self._usage.prompt_tokens}", f"cached={self._usage.cached_tokens}"]
            parts += [f"output={self._usage.completion_tokens}"]
        if self._first_token is not None:
            parts.append(f"first_token={self._first_token:.3f}")
        if self._ends:
            parts.append(f"finish={','.join(self._ends)}")
        if self._code:
            parts.append(f"code={self._code}")
        return parts
