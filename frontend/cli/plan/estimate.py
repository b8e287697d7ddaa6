"""Estimates a model on a device: its bytes, the requests that fit, and bounds of its speed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch

from ....runtime.config import BUILTIN_MODEL, DType, KvDType, QuantizeMethod, ServeConfig
from ....runtime.errors import ConfigError
from ....runtime.model.decoder_config import DecoderConfig, load_decoder_config
from ....runtime.model.devices import choose_dtype, kv_dtype
from ....runtime.model.kv_pool import PoolLayout, context_length, default_budget, page_bytes
from ....runtime.model.model_source import DecoderArchitecture, open_architecture
from ....runtime.model.pooling_config import read_pooling
from .gpus import Gpu
from .roofline import Rates, Work, cost_per_million
from .weights import FLOAT_NAMES, StoredFormat, Weights, all_formats, quantized_weights

_SERVED = ServeConfig(model=BUILTIN_MODEL, served_model_name="")
PAGE_SIZE = _SERVED.page_size
MAX_REQUESTS = _SERVED.max_running
STEP_MS = _SERVED.step_ms
BATCHES = (1, 8, 64)
CURVE = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """The model, the device and the requests to estimate. `memory` is the device's, in bytes; `price` is
    for an hour of the device, in any currency; `context_text` is `context` as the user wrote it."""

    model: Path
    name: str
    device: str
    memory: int
    gpu: Gpu | None
    context: int | None
    context_text: str
    dtype: DType
    quantize: QuantizeMethod | None
    kv_dtype: KvDType
    price: float | None
    max_running: int = MAX_REQUESTS


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """One format of the weights on the device. `requests` is the number of full-context requests that fit."""

    format: str
    weight_bytes: int
    is_expanded: bool
    kv_bytes: int
    pages: int
    requests: int


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """The bound for `batch` requests. `fits` says whether memory holds them."""

    batch: int
    tokens_per_s: float
    fits: bool
    cost_per_million: float | None


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    device: str
    memory_bytes: int
    dtype: str
    kv_dtype: str
    context: int
    page_size: int
    page_bytes: int
    kv_bytes_per_token: int
    chosen: Fit
    """the format that the options or the checkpoint ask for"""
    formats: tuple[Fit, ...]
    decode: tuple[Speed, ...]
    """Empty unless the GPU's rates are known. The fields below are empty then too."""
    curve: tuple[Speed, ...]
    prefill_tokens_per_s: float | None
    prefill_cost_per_million: float | None
    source: str | None
    """where the GPU's bandwidth and rate are published"""


class PlannedModel(NamedTuple):
    """A question's model, as its config and, if there are files, their headers describe it."""

    config: DecoderConfig
    stored: StoredFormat
    dtype: torch.dtype
    cells: torch.dtype
    """dtype of the KV cache"""
    weights: Weights
    """in the format that the options or the checkpoint ask for"""
    context: int

    @classmethod
    def read(cls, question: Question) -> PlannedModel:
        """Raises ConfigError for a model or options that can't be planned."""
        config = _read_config(question)
        context = _choose_context(config, question)
        stored = StoredFormat.of(question.model)
        dtype = choose_dtype(question.dtype, config.dtype, stored.dtype())
        weights = _choose_weights(question, config, stored, dtype, torch.device(question.device))
        return cls(config, stored, dtype, _kv_dtype(question, dtype), weights, context)

    def measure_work(self) -> Work:
        """The work of the model's steps."""
        token_bytes = page_bytes(self.config.cache_spec, PAGE_SIZE, self.cells) // PAGE_SIZE
        return Work(self.config, self.weights.step_bytes, self.weights.expert_bytes, token_bytes)

    def find_rates(self, gpu: Gpu) -> Rates:
        """The rates of a GPU in the model's dtype."""
        is_wide = self.dtype == torch.float32
        return Rates(gpu.bandwidth, gpu.float32_rate if is_wide else gpu.matrix_rate)


def estimate(question: Question, model: PlannedModel) -> Estimate:
    """Answers the question about its model."""
    config, stored, dtype, cells, weights, context = model
    device = torch.device(question.device)
    page = page_bytes(config.cache_spec, PAGE_SIZE, cells)
    layout = PoolLayout.of(config.cache_spec, PAGE_SIZE, cells, context)

    def fit(weights: Weights) -> Fit:
        free = question.memory - weights.bytes
        budget = default_budget(config, dtype, device, free) if free > 0 else 0
        pages = layout.fit(budget, question.max_running)
        return Fit(
            format=weights.format,
            weight_bytes=weights.bytes,
            is_expanded=weights.is_expanded,
            kv_bytes=layout.bytes(pages),
            pages=pages,
            requests=pages // -(-context // PAGE_SIZE),
        )

    chosen, work = fit(weights), model.measure_work()
    rates = None if question.gpu is None else model.find_rates(question.gpu)
    prefill = None if rates is None else work.prefill_tokens_per_s(rates, context)

    def cost(tokens_per_s: float) -> float | None:
        return None if question.price is None else cost_per_million(tokens_per_s, question.price)

    def speeds(batches: Sequence[int]) -> Iterator[Speed]:
        if rates is None:
            return
        for batch in batches:
            tokens_per_s = work.decode_tokens_per_s(rates, batch, context)
            yield Speed(
                batch=batch,
                tokens_per_s=tokens_per_s,
                fits=batch <= chosen.requests,
                cost_per_million=cost(tokens_per_s),
            )

    return Estimate(
        model=question.name,
        device=question.device,
        memory_bytes=question.memory,
        dtype=FLOAT_NAMES[dtype],
        kv_dtype=str(cells).removeprefix("torch."),
        context=context,
        page_size=PAGE_SIZE,
        page_bytes=page,
        kv_bytes_per_token=page // PAGE_SIZE,
        chosen=chosen,
        formats=() if stored.is_quantized(config) else tuple(map(fit, all_formats(config, dtype, device))),
        decode=tuple(speeds(BATCHES)),
        curve=tuple(speeds(CURVE)),
        prefill_tokens_per_s=prefill,
        prefill_cost_per_million=None if prefill is None else cost(prefill),
        source=None if question.gpu is None else question.gpu.source,
    )


def _read_config(question: Question) -> DecoderConfig:
    """Raises ConfigError for a model that can't be estimated, whether or not it can be served."""
    try:
        return load_decoder_config(question.model)
    except ConfigError:
        pooling = read_pooling(question.model, "auto")
        if isinstance(open_architecture(question.model, "auto", pooling), DecoderArchitecture):
            raise
    raise ConfigError(
        f"MODEL {question.name}: it is served, by the code of transformers, but not estimated. `arbora "
        "serve` tells the size of its weights and of its KV cache when it starts."
    )


def _choose_context(config: DecoderConfig, question: Question) -> int:
    try:
        return context_length(config, question.context)
    except ConfigError:
        allowed = f"the model's positions allow 1 to {config.max_positions:,} tokens"
        raise ConfigError(f"--context {question.context_text}: {allowed}.") from None


def _kv_dtype(question: Question, dtype: torch.dtype) -> torch.dtype:
    config = ServeConfig(model=question.model, served_model_name=question.name, kv_dtype=question.kv_dtype)
    return kv_dtype(config, dtype)


def _choose_weights(
    question: Question, config: DecoderConfig, stored: StoredFormat, dtype: torch.dtype, device: torch.device
) -> Weights:
    if question.quantize is None:
        return stored.weights(config, dtype, device)
    if stored.is_quantized(config):
        method = stored.formats.method
        raise ConfigError(
            f"--quantize {question.quantize}: the model is quantized already ({method}). Leave it out."
        )
    return quantized_weights(config, question.quantize, dtype, device)
