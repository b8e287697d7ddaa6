"""The schedulers' counters and gauges as Prometheus' metrics."""

from __future__ import annotations

import contextlib
import os
from collections import Counter as Counts
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import get_args

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ...runtime.messages import DRAFT_SOURCES, LeaseKind, Stats
from ..core.replica.engine_client import ReplicaStats
from ..core.replica.merging import merge_stats

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
