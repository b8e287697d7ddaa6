"""The metrics that operators scrape: measurements of this process, and the scheduler's counters."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from ...runtime.api_keys import ApiKey
from ...runtime.errors import RequestError
from ...runtime.messages import TOKEN_BYTES, Generate, Output, Tokens
from ...runtime.processes.child import METRICS_VARIABLE
from ...runtime.sampling_params import SamplingParams
from ..core.replica.engine_client import EngineClient, ReplicaStats
from ..core.reply import Reply, Usage
from ..core.text.prompt_memo import PromptMemo
from .scheduler_metrics import ModelsStats, SchedulerStats
from .vllm_metrics import VllmMetrics

_FIRST_TOKEN_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120)
_BETWEEN_TOKENS_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2, 5)
_REQUEST_BUCKETS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800)


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
