"""Plans the memory of the KV cache."""

from __future__ import annotations

import logging

import torch

from ..byte_sizes import as_given, in_units
from ..config import ServeConfig
from ..errors import ConfigError
from .devices import free_memory
from .interface.model import ModelConfig
from .kv_pool import PoolLayout, PoolSize, default_budget, size_pool
from .recurrent_states import CHECKPOINT_TOKENS, count_places
from .tiers import host_bytes

MAX_PAGES_OF_INPUT = 2
"""pages for each slot of a model without pages: the scheduler keeps one in reserve"""
log = logging.getLogger(__name__)


def plan_pages(
    config: ServeConfig,
    shape: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    graph_bytes: int,
    layout: PoolLayout,
    adapter_bytes: int = 0,
    mapped_bytes: int = 0,
) -> PoolSize:
    """The number of pages that fit beside the loaded weights, and the context that they allow.

    dtype: of activations. graph_bytes: bytes of CUDA graphs that are captured later. layout: of pages and
    contexts. adapter_bytes: bytes of adapters that are loaded later. mapped_bytes: bytes of weights that are
    mapped from a file, which the system counts as free. Raises ConfigError if the memory does not suffice.
    """
    context = layout.context
    if shape.cache_spec.is_empty:
        return PoolSize((MAX_PAGES_OF_INPUT * config.max_running,), context)
    budget = _kv_budget(config, shape, dtype, device, graph_bytes, adapter_bytes, mapped_bytes)
    state_bytes = shape.cache_spec.state_bytes(dtype)
    fixed = state_bytes * count_places(config.max_running, 0)
    layout = layout.add_bytes(-(-state_bytes * config.page_size // CHECKPOINT_TOKENS))
    pool = size_pool(
        budget=budget - fixed,
        layout=layout,
        slots=config.max_running,
        context_was_asked=config.max_model_len is not None,
    )
    if state_bytes:
        pool = pool._replace(states=count_places(config.max_running, pool.num_pages * config.page_size))
    kv_bytes = layout.bytes(pool.num_pages)
    _check_room(config, kv_bytes + fixed, adapter_bytes, mapped_bytes, device)
    if config.kv_memory is not None and layout.bytes(pool.num_pages + 1) <= budget - fixed:
        log.warning(
            "--kv-memory %s: only %s are used: %d requests (--max-running) of %s tokens can't fill more; for "
            "more raise --max-running",
            as_given(budget),
            in_units(kv_bytes),
            config.max_running,
            f"{context:,}",
        )
    if pool.max_model_len < context:
        log.warning(
            "the context is cut from %s to %s tokens, as --kv-memory of %s holds no more",
            f"{context:,}",
            f"{pool.max_model_len:,}",
            as_given(budget),
        )
    return pool


def limit_slots(
    config: ServeConfig,
    shape: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    adapter_bytes: int,
    mapped_bytes: int = 0,
) -> int:
    """How many requests have their recurrent states in half of the KV cache's memory, at most --max-running.

    Raises ConfigError if there is not even one.
    """
    of_request = shape.cache_spec.state_bytes(dtype) * count_places(1, 0)
    if not of_request:
        return config.max_running
    budget = _kv_budget(config, shape, dtype, device, adapter_bytes=adapter_bytes, mapped_bytes=mapped_bytes)
    slots = min(config.max_running, budget // 2 // of_request)
    if not slots:
        raise ConfigError(
            f"--kv-memory {as_given(budget)}: the recurrent states of one request take "
            f"{in_units(of_request, up=True)}, and may take half of it. Raise --kv-memory."
        )
    if slots < config.max_running:
        log.warning(
            "--max-running is lowered from %d to %d: the recurrent states of a request take %s; for more "
            "raise --kv-memory",
            config.max_running,
            slots,
            in_units(of_request),
        )
    return slots


def _check_room(
    config: ServeConfig, kv_bytes: int, adapter_bytes: int, mapped_bytes: int, device: torch.device
) -> None:
    """Raises ConfigError if the machine lacks memory for the KV cache beside the loaded weights and adapters.

    Pages on the CPU take memory when `PageMemory` asks for it, so without this check the server would die
    later.
    """
    free = _free_beside(mapped_bytes, device)
    kept = host_bytes(config) if device.type == "cpu" else 0
    if kv_bytes + kept + adapter_bytes <= free:
        return
    beside = f" and --host-cache {as_given(kept)}" if kept else ""
    beside += f" and adapters {in_units(adapter_bytes, up=True)}" if adapter_bytes else ""
    given, needed = as_given(config.kv_memory or kv_bytes), in_units(kv_bytes, up=True)
    raise ConfigError(
        f"--kv-memory {given}: the KV cache would take {needed}{beside}, but beside the model only "
        f"{in_units(free)} are free. Lower --kv-memory, or leave it out for a size that fits."
    )


def _free_beside(mapped_bytes: int, device: torch.device) -> int:
    """Bytes of free memory beside the weights. Raises ConfigError if there are none."""
    free = free_memory(device)
    if 0 < mapped_bytes >= free:
        raise ConfigError(
            f"the model's weights take {in_units(mapped_bytes, up=True)}, but only {in_units(free)} of "
            "memory are free. Use a smaller model or a smaller quantization."
        )
    return free - mapped_bytes


def _kv_budget(
    config: ServeConfig,
    shape: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    graph_bytes: int = 0,
    adapter_bytes: int = 0,
    mapped_bytes: int = 0,
) -> int:
    """Bytes for the KV cache. On a CPU, the host tier takes part of the same memory."""
    if config.kv_memory is not None:
        return config.kv_memory
    free = _free_beside(mapped_bytes, device) - adapter_bytes
    if free <= 0:
        raise ConfigError(
            f"--max-loras {config.adapter_places}: the adapters may take {in_units(adapter_bytes, up=True)}, "
            f"but beside the model only {in_units(free + adapter_bytes)} are free: lower --max-loras or "
            "--max-lora-rank."
        )
    kept = host_bytes(config) if device.type == "cpu" else 0
    if kept >= free:
        raise ConfigError(
            f"--host-cache {as_given(kept)}: beside the model only {in_units(free)} are free: lower it."
        )
    return default_budget(shape, dtype, device, free - kept, graph_bytes)
