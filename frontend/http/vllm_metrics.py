"""Gauges under the names that vLLM gives them, which gateways read to choose a server (`--vllm-metrics`)."""

from __future__ import annotations

import time
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from ...runtime.messages import ModelReady, Stats
from ..core.replica.engine_client import EngineClient


class VllmMetrics:
    """The gauges of all loaded models, with the label `model_name`. Those of replicas are added up."""

    def __init__(self) -> None:
        self._models: dict[str, tuple[ModelReady, Stats, list[str]]] = {}

    def update(self, name: str, engine: EngineClient, stats: Stats | None) -> None:
        """Takes a model's counters; None while it is not loaded."""
        self._models.pop(name, None)
        if stats is not None and engine.model is not None:
            self._models[name] = engine.model, stats, list(engine.adapters)

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics, as Prometheus' collectors do."""
        waiting, running, usage = (
            GaugeMetricFamily(f"vllm:{name}", text, labels=["model_name"])
            for name, text in (
                ("num_requests_waiting", "Requests that wait to start."),
                ("num_requests_running", "Requests that take part in steps."),
                ("kv_cache_usage_perc", "Part of the KV cache that requests use; 1 means all."),
            )
        )
        pages = GaugeMetricFamily(
            "vllm:cache_config_info",
            "Tokens of a page, and the number of pages.",
            labels=["model_name", "block_size", "num_gpu_blocks"],
        )
        adapters = GaugeMetricFamily(
            "vllm:lora_requests_info",
            "The loaded adapters; the value is the present time.",
            labels=["max_lora", "running_lora_adapters", "waiting_lora_adapters"],
        )
        for name, (model, stats, loaded) in self._models.items():
            waiting.add_metric([name], stats.waiting)
            running.add_metric([name], stats.running)
            usage.add_metric([name], stats.pages_used / max(1, stats.pages_total))
            pages.add_metric([name, str(model.page_size), str(stats.pages_total)], 1)
            if model.adapter_places:
                adapters.add_metric([str(model.adapter_places), ",".join(loaded), ""], time.time())
        yield from (waiting, running, usage, pages)
        if adapters.samples:
            yield adapters
