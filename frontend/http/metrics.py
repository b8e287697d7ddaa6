"""The metrics that operators scrape: measurements of this process, and the scheduler's counters."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter as Counts
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import get_args

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector

from ...runtime.api_keys import ApiKey
from ...runtime.errors import RequestError
from ...runtime.messages import DRAFT_SOURCES, TOKEN_BYTES, Generate, LeaseKind, Output, Stats, Tokens
from ...runtime.processes.child import METRICS_VARIABLE
from ...runtime.sampling_params import SamplingParams
from ..core.replica.engine_client import EngineClient, ReplicaStats
from ..core.replica.merging import merge_stats
from ..core.reply import Reply, Usage
from ..core.text.prompt_memo import PromptMemo
from .vllm_metrics import VllmMetrics

_FIRST_TOKEN_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120)
_BETWEEN_TOKENS_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5)
_REQUEST_BUCKETS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800)

_COUNTS_FILE = "counts."
_counts = msgspec.json.Decoder(dict[str, int])

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
    "prefill_hits": ("arbora_prefill_pages_received", "Pages that prefill servers have computed and sent."),
    "prefill_pages": ("arbora_prefill_pages_sent", "Pages computed for other servers and sent to them."),
    "restored_pages": ("arbora_pages_restored", "Pages copied back into the KV cache."),
}
_COUNTERS = {
    "prompt_tokens_cached": ("arbora_prompt_tokens_cached", "Prompt tokens whose KV was in the cache."),
    "prompt_tokens_looked_up": (
        "arbora_prompt_tokens_looked_up",
        "Prompt tokens of requests that read the cache; those that it had are counted as cached.",
    ),
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
    "reply_steps": (
        "arbora_reply_steps",
        "Steps that sampled tokens of a reply, counted for each reply.",
    ),
}
_DRAFT_COUNTERS = {
    "drafted": ("arbora_drafted_tokens", "Tokens that were guessed, by where they were found."),
    "accepted": ("arbora_accepted_tokens", "Guessed tokens that the model then sampled."),
}


class SchedulerStats:
    """The schedulers' last counters. A replica that starts again counts from zero, but the totals here
    include its earlier starts. With several replicas, gauges are the sums of those that answer.

    Where several processes serve HTTP, the counters of each replica are in a file in `directory`, because
    Prometheus may ask any process, also one that has just started. A single process opens no files (None).
    """

    def __init__(self, directory: Path | None) -> None:
        self.last: Stats | None = None
        self._is_loaded: bool | None = None
        self._replicas = 1
        self._backlogs: dict[int, float] = {}  # of the replicas that have answered last
        self._directory = directory
        self._counts: dict[int, dict[str, int]] = {}  # counters by the replica's epoch
        self._epochs: dict[int, int] = {}  # the last epoch of each replica
        self._ended: Counts[str] = Counts()  # the sums of earlier epochs
        self._read()

    def update(
        self, answers: Sequence[ReplicaStats], replicas: int = 1, is_loaded: bool | None = None
    ) -> None:
        """Takes the counters of those of the model's `replicas` that answer. `is_loaded` is None for a model
        that is never unloaded."""
        self._replicas = replicas
        self._backlogs = {answer.replica: answer.backlog_s for answer in answers}
        self._is_loaded = is_loaded
        if is_loaded is False:
            self.last = None
        for answer in answers:
            self._end_earlier(answer.replica, answer.epoch)
            self._count(answer.stats, answer.epoch)
        if answers:
            self.last = merge_stats([answer.stats for answer in answers])

    def _end_earlier(self, replica: int, epoch: int) -> None:
        """Adds the counters of the replica's last start to those that no longer change, so that a model that
        is loaded again and again takes no more memory. With files, the other processes need each."""
        last = self._epochs.get(replica, epoch)
        self._epochs[replica] = epoch
        if last != epoch and self._directory is None:
            self._ended.update(self._counts.pop(last, {}))

    def _count(self, stats: Stats, epoch: int) -> None:
        """Takes the counters of a replica's start."""
        if epoch not in self._counts:
            self._read()
        counts = {name: getattr(stats, name) for name in _COUNTERS}
        counts |= {name: getattr(stats.store, name) for name in _STORE_COUNTERS}
        for kind in _DRAFT_COUNTERS:
            counts |= {f"{kind}_{source}": count for source, count in getattr(stats, kind).items()}
        self._counts[epoch] = counts
        if self._directory is None:
            return
        file = self._directory / f"{_COUNTS_FILE}{epoch}"
        written = file.with_name(f"new.{file.name}.{os.getpid()}")
        with contextlib.suppress(OSError):  # the disk is full, or no descriptor is left
            written.write_bytes(msgspec.json.encode(counts))
            written.rename(file)

    def _read(self) -> None:
        """Reads the counters of earlier replicas, as some process saw them last."""
        if self._directory is None:
            return
        with contextlib.suppress(OSError):
            for file in self._directory.glob(f"{_COUNTS_FILE}*"):
                self._counts[int(file.suffix[1:])] = _counts.decode(file.read_bytes())

    def _totals(self) -> dict[str, int]:
        totals = self._ended.copy()
        for counts in self._counts.values():
            totals.update(counts)
        return totals

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics, as Prometheus' collectors do."""
        if self.last is not None:
            for field, (name, documentation) in _GAUGES.items():
                yield GaugeMetricFamily(name, documentation, value=getattr(self.last, field))
            for field, (name, documentation) in _STORE_GAUGES.items():
                yield GaugeMetricFamily(name, documentation, value=getattr(self.last.store, field))
            leases = GaugeMetricFamily("arbora_leases", "Leases on cached prefixes.", labels=["kind"])
            for kind in get_args(LeaseKind):
                leases.add_metric([kind], self.last.leases.get(kind, 0))
            yield leases
            free = self.last.pages_total - self.last.pages_used - self.last.pages_cached
            yield GaugeMetricFamily("arbora_kv_pages_free", "Pages that hold nothing.", value=free)
        if self._is_loaded is not None:
            text = "Whether the model is loaded."
            yield GaugeMetricFamily("arbora_model_loaded", text, value=self._is_loaded)
        if self._replicas > 1:
            up = GaugeMetricFamily("arbora_replica_up", "Whether the replica answers.", labels=["replica"])
            for number in range(self._replicas):
                up.add_metric([str(number)], number in self._backlogs)
            yield up
            backlog = GaugeMetricFamily(
                "arbora_replica_backlog_seconds",
                "Seconds until the replica would begin a new prompt, with its part of the open replies.",
                labels=["replica"],
            )
            for number, seconds in self._backlogs.items():
                backlog.add_metric([str(number)], seconds)
            yield backlog
        totals = self._totals()
        for field, (name, documentation) in (_COUNTERS | _STORE_COUNTERS).items():
            yield CounterMetricFamily(name, documentation, value=totals[field])
        for kind, (name, documentation) in _DRAFT_COUNTERS.items():
            drafts = CounterMetricFamily(name, documentation, labels=["source"])
            for source in DRAFT_SOURCES:
                drafts.add_metric([source], totals[f"{kind}_{source}"])
            yield drafts


class ModelsStats:
    """The schedulers' counters of all models, with the label `model` if there are several."""

    def __init__(self, by_model: Mapping[str, SchedulerStats]) -> None:
        self._by_model = by_model

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics, as Prometheus' collectors do."""
        if len(self._by_model) == 1:
            yield from next(iter(self._by_model.values())).collect()
            return
        merged: dict[str, Metric] = {}
        for model, stats in self._by_model.items():
            for each in stats.collect():
                family = merged.setdefault(each.name, Metric(each.name, each.documentation, each.type))
                for sample in each.samples:
                    family.add_sample(sample.name, {"model": model, **sample.labels}, sample.value)
        yield from merged.values()


class MemoStats:
    """Counters of this process's prompt memos, one for each model."""

    def __init__(self, memos: Sequence[PromptMemo], registry: CollectorRegistry) -> None:
        self._memos = memos
        self._remembered = Counter(
            "arbora_prompt_tokens_remembered",
            "Prompt tokens reused from earlier turns, not tokenized again.",
            registry=registry,
        )
        self._rewritten = Counter(
            "arbora_prompt_tokens_rewritten",
            "Tokens of earlier turns that were lost because a prompt has other text in a reply's place.",
            registry=registry,
        )
        self._bytes = Gauge(
            "arbora_prompt_memo_bytes",
            "Memory that remembered prompts and replies take.",
            registry=registry,
            multiprocess_mode="livesum",
        )
        self._seen = (0, 0)

    def update(self) -> None:
        now = (
            sum(memo.tokens_remembered for memo in self._memos),
            sum(memo.tokens_rewritten for memo in self._memos),
        )
        self._remembered.inc(now[0] - self._seen[0])
        self._rewritten.inc(now[1] - self._seen[1])
        self._bytes.set(sum(memo.bytes_used for memo in self._memos))
        self._seen = now


class Metrics:
    """The measurements of this process, and the scheduler's counters.

    Where several processes serve HTTP, `METRICS_VARIABLE` names a directory with the measurements of all,
    also of processes that have died; then the sums are shown.
    """

    def __init__(
        self, memos: Sequence[PromptMemo], directories: Mapping[str, Path], has_vllm_names: bool = False
    ) -> None:
        """`directories`: those of the models, by their names. `has_vllm_names`: whether some gauges are shown
        under vLLM's names too."""
        self._vllm = VllmMetrics() if has_vllm_names else None
        self._registry = CollectorRegistry()
        self.memo = MemoStats(memos, self._registry)
        has_files = METRICS_VARIABLE in os.environ
        self.schedulers = {
            name: SchedulerStats(directory if has_files else None) for name, directory in directories.items()
        }
        self.first_token = self._histogram(
            "arbora_time_to_first_token_seconds", "From the request to its first token.", _FIRST_TOKEN_BUCKETS
        )
        self._gaps: list[float] = []  # seconds between outputs that are not in the histogram yet
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

        self.key_answers = self._counter(
            "arbora_key_answers", "Answers to requests that generate, by API key.", ("key", "status")
        )
        self.key_tokens = self._counter(
            "arbora_key_tokens", "Tokens of served requests, by API key.", ("key", "kind")
        )

    async def update(self, engines: Iterable[EngineClient]) -> list[ReplicaStats]:
        """Takes the counters of the models' schedulers. Returns those of all replicas that answer."""
        asked = list(engines)
        answers = await asyncio.gather(*(engine.stats() for engine in asked))
        of_models = zip(self.schedulers.items(), asked, answers, strict=True)
        for (name, scheduler), engine, found in of_models:
            scheduler.update(found, engine.replicas, engine.is_loaded)
            if self._vllm is not None:
                self._vllm.update(name, engine, scheduler.last)
        return list(chain.from_iterable(answers))

    def note_gap(self, seconds: float) -> None:
        """Adds the time between two outputs of a choice to the histogram. That waits for the event loop's
        next turn, so that all streams get the tokens of this step first."""
        if not self._gaps:
            asyncio.get_running_loop().call_soon(self._measure_gaps)
        self._gaps.append(seconds)

    def _measure_gaps(self) -> None:
        gaps, self._gaps = self._gaps, []
        for seconds in gaps:
            self.between_tokens.observe(seconds)

    def exposition(self) -> bytes:
        self.memo.update()
        text = generate_latest(self._find_registry()) + generate_latest(_only(ModelsStats(self.schedulers)))
        return text if self._vllm is None else text + generate_latest(_only(self._vllm))

    def read_counts(self) -> dict[tuple[str, str], float]:
        """The values of all counters and histograms, by their names and the values of their first labels: the
        sums of all models."""
        metrics = chain(
            self._find_registry().collect(), *(each.collect() for each in self.schedulers.values())
        )
        counts: dict[tuple[str, str], float] = {}
        for metric in metrics:
            if metric.type in ("counter", "histogram"):
                for sample in metric.samples:
                    key = sample.name, next(iter(sample.labels.values()), "")
                    counts[key] = counts.get(key, 0.0) + sample.value
        return counts

    def _find_registry(self) -> CollectorRegistry:
        """The measurements of this process or, where several serve HTTP, of all."""
        if METRICS_VARIABLE not in os.environ:
            return self._registry
        merged = CollectorRegistry()
        MultiProcessCollector(merged)  # type: ignore[no-untyped-call]
        return merged

    def _histogram(self, name: str, documentation: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, documentation, buckets=buckets, registry=self._registry)

    def _counter(self, name: str, documentation: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(name, documentation, labels, registry=self._registry)


def _only(collector: ModelsStats | VllmMetrics) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(collector)
    return registry


class RequestTimer:
    """Measures one request's latencies from the arrival times of its outputs, and records how it ended.

    Times are in seconds, None if unknown. `ends` are the finish reasons of the choices, `abort`, or `error-`
    with a status; `error` is the error of a stream that had begun.
    """

    def __init__(self, metrics: Metrics, key: ApiKey | None = None) -> None:
        self._metrics = metrics
        self._key = key
        self._started = time.monotonic()
        self._first: dict[int, float] = {}
        self._last: dict[int, float] = {}
        self._outputs = 0
        self._first_tokens = 0  # tokens of the first outputs
        self.queued_s: float | None = None
        self._requests: Sequence[Generate] = ()
        self._reply: Reply | None = None
        self.first_token_s: float | None = None
        self.usage: Usage | None = None
        self.ends: list[str] = []
        self.error: RequestError | None = None
        self.is_aborted = False

    def accepted(self, requests: Sequence[Generate]) -> None:
        self._requests = requests

    def output(self, choice: int, output: Output, at: float) -> None:
        """Records an output of a choice. at: the arrival time, in seconds of `time.monotonic`"""
        if output.queued_s is not None:
            self.queued_s = output.queued_s
        if not output.tokens:
            return
        self._outputs += 1
        previous = self._last.get(choice)
        if previous is not None:
            self._metrics.note_gap(at - previous)
        else:
            self._first[choice] = at
            self._first_tokens += len(output.tokens) // TOKEN_BYTES
            if not self._last:
                self.first_token_s = at - self._started
                self._metrics.first_token.observe(self.first_token_s)
        self._last[choice] = at

    def finished(self, usage: Usage, reasons: list[str]) -> None:
        self.usage, self.ends = usage, reasons
        self._metrics.request.observe(time.monotonic() - self._started)
        self._metrics.prompt_tokens.inc(usage.prompt_tokens)
        self._metrics.completion_tokens.inc(usage.completion_tokens)
        for reason in reasons:
            self._metrics.finished.labels(reason).inc()

    def reached(self, reply: Reply) -> None:
        """Records the usage once no more tokens follow; the request may have ended early."""
        self._reply = reply
        self._metrics.memo.update()
        self.count_usage(reply.usage())

    def count_usage(self, usage: Usage) -> None:
        self.usage = usage
        if self._key is not None:
            self._metrics.key_tokens.labels(self._key.name, "prompt").inc(usage.prompt_tokens)
            self._metrics.key_tokens.labels(self._key.name, "completion").inc(usage.completion_tokens)

    def failed(self, error: RequestError) -> None:
        """Records a failure after a stream began, so the response's own status was 200."""
        self.ends = [f"error-{error.status}"]
        self.error = error
        self._metrics.failed.labels(error.status).inc()

    def aborted(self, choices: int) -> None:
        """Records that the client disconnected before the request's last choice ended."""
        self.ends, self.is_aborted = ["abort"], True
        self._metrics.finished.labels("abort").inc(choices)

    @property
    def sampling(self) -> SamplingParams | None:
        return self._requests[0].sampling if self._requests else None

    @property
    def between_tokens_s(self) -> float | None:
        """The mean time between two outputs of a choice."""
        gaps = self._outputs - len(self._last)
        return (sum(self._last.values()) - sum(self._first.values())) / gaps if gaps > 0 else None

    @property
    def tokens_per_s(self) -> float | None:
        """The tokens of all choices in a second of decoding; None unless tokens followed the first ones."""
        if self.usage is None or not self._last:
            return None
        seconds = max(self._last.values()) - min(self._first.values())
        tokens = self.usage.completion_tokens - self._first_tokens
        return tokens / seconds if tokens > 0 and seconds > 0 else None

    def prompts(self) -> list[Tokens]:
        """The request's prompts, each once, also if it has several choices."""
        return list(dict.fromkeys(request.prompt for request in self._requests))

    def replies(self) -> list[Tokens]:
        """The tokens of each choice. The list is empty before the reply has begun."""
        return [] if self._reply is None else [choice.tokens for choice in self._reply.choices]
