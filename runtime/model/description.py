"""Describes a model and its device, as far as the times of steps depend on them."""

from __future__ import annotations

import torch

from ..messages import ModelDescription
from .interface.model import ModelConfig


def describe_model(
    config: ModelConfig,
    dtype: torch.dtype,
    method: str,
    cells: torch.dtype,
    device: str,
    threads: int = 0,
    tp: int = 1,
) -> ModelDescription:
    """config: the whole model's. method: how the weights are quantized. cells: the dtype of the KV cache.
    For the others see `ModelDescription`."""
    spec = config.cache_spec
    return ModelDescription(
        layers=spec.layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        vocab_size=config.vocab_size,
        dtype=str(dtype).removeprefix("torch."),
        weights=method,
        kv_dtype=str(cells).removeprefix("torch."),
        device=device,
        threads=threads,
        tp=tp,
    )
