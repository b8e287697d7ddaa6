"""Loads a model directory into a runner that is ready for its first step."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import NamedTuple

import torch

from ...kernels.arithmetic import arithmetic
from ..byte_sizes import as_given, in_units
from ..config import ServeConfig
from ..errors import ConfigError
from ..logs import ProgressLine
from ..messages import ModelReady
from ..vocabulary import Vocabulary
from .cpu_executor import CpuExecutor
from .decoder import Decoder
from .decoder_config import DecoderConfig, load_decoder_config
from .devices import choose_device, choose_dtype, free_memory, kv_dtype
from .executor import DeviceState, EagerExecutor
from .generation_config import sampling_defaults
from .group_cost import group_cost
from .heap import outside_heap
from .kv_pool import PoolSize, allocate_pool, context_length, default_budget, page_bytes, size_pool
from .page_memory import PageMemory
from .page_tables import PageTables
from .product_choice import choose_products
from .rope import RotaryTable
from .runner import Runner
from .slot_states import SlotStates
from .tiers import PageStore, Transfers, host_bytes, open_page_store, page_model
from .warm_up import warm_up
from .weight_formats import Checkpoint, checkpoint_formats, quantized
from .weights import EMBEDDING, FINAL_NORM, expected_tensors, load_weights, projections

MOST_PAGE_SIZE = 256
log = logging.getLogger(__name__)


class LoadedModel(NamedTuple):
    runner: Runner
    ready: ModelReady
    page_store: PageStore | None


def load_model(config: ServeConfig, load_vocabulary: Callable[[], Vocabulary]) -> LoadedModel:
    """Raises ConfigError for a model or settings that cannot be served, and CaptureError if CUDA can't be
    used after a graph's capture failed: then another process can serve without graphs.

    `load_vocabulary` is called when the first grammar is loaded.
    """
    if not 1 <= config.page_size <= MOST_PAGE_SIZE:
        raise ConfigError(f"--page-size {config.page_size}: must be 1 to {MOST_PAGE_SIZE} tokens.")
    device = choose_device(config)
    shape = load_decoder_config(config.model)
    context = context_length(shape, config.max_model_len)
    checkpoint = Checkpoint(config.model)
    sampling = sampling_defaults(config.model, checkpoint.gguf)
    formats = checkpoint_formats(config.model, checkpoint)
    checkpoint.check(expected_tensors(shape, formats.choose))
    dtype = choose_dtype(config.dtype, shape.dtype, checkpoint.float_dtype([EMBEDDING, FINAL_NORM]))
    log.info(
        "loading %s of %s weights onto %s, to compute in %s",
        in_units(sum(file.stat().st_size for file in checkpoint.files)),
        formats.method,
        device,
        str(dtype).removeprefix("torch."),
    )
    if config.quantize is not None:
        checkpoint, formats = quantized(
            config.model,
            checkpoint,
            formats,
            list(projections(shape)),
            config.quantize,
            partial(expected_tensors, shape),
        )
    stored = kv_dtype(config, dtype)
    bytes_per_page = page_bytes(shape, config.page_size, stored)
    store = open_page_store(config, bytes_per_page, device)
    with outside_heap():
        progress = ProgressLine()
        weights = load_weights(
            checkpoint, formats.choose, shape, dtype, device, config.deterministic, progress.show
        )
        progress.end()
    states = SlotStates(config.max_running, shape.vocab_size, device, load_vocabulary)
    tables = PageTables(config.max_running, context, config.page_size, device)
    graphs, graph_bytes = None, 0
    if device.type == "cuda" and not config.enforce_eager:
        from .cuda_executor import CudaExecutor  # Triton may be missing without a GPU

        with _undisturbed(store):
            choose_products(weights)
            one_position = Decoder(shape, weights, RotaryTable(shape.rope, 1, device))
            graphs = CudaExecutor(shape, one_position, tables, states)
            # Triton would take a 1 as a constant.
            few_pages = allocate_pool(shape, 2, config.page_size, stored, device)
            graph_bytes = graphs.forward_bytes(one_position, few_pages)
        del few_pages
    pool = _size_pool(config, shape, dtype, device, graph_bytes)
    rotary = RotaryTable(shape.rope, pool.max_model_len, device)
    kvs = allocate_pool(shape, pool.num_pages, config.page_size, stored, device)
    page_memory = None
    if device.type == "cpu":
        page_memory = PageMemory(kvs, config.page_size)
        # Before the test step, which leaves a core idle: later, the thread would slow the first requests.
        page_memory.start(everything=config.kv_memory is not None)
    decoder = Decoder(shape, weights, rotary, config.deterministic)
    transfers = Transfers(kvs, store) if store is not None else None
    log.info(
        "KV cache: %s tokens of %s in %s; running a test step",
        f"{pool.num_pages * config.page_size:,}",
        str(stored).removeprefix("torch."),
        in_units(pool.num_pages * bytes_per_page),
    )
    state = DeviceState(decoder, kvs, tables, states)
    runner_with = partial(Runner, state, transfers=transfers, page_memory=page_memory)
    if device.type == "cpu" and not config.enforce_eager:
        runner = runner_with(CpuExecutor(state, shape, config.deterministic))
    else:
        runner = runner_with(EagerExecutor(state))
    if not warm_up(runner, shape, pool, config):
        _explain_bad_logits(checkpoint, expected_tensors(shape, formats.choose), dtype)
    if transfers is not None:
        transfers.warm_up()
    if graphs is not None:
        with _undisturbed(store):
            graphs.capture(state)  # after the warm-up has compiled the kernels
        runner = runner_with(graphs)
    ready = ModelReady(
        num_pages=pool.num_pages,
        page_size=config.page_size,
        max_model_len=pool.max_model_len,
        slots=config.max_running,
        vocab_size=shape.vocab_size,
        device=str(device),
        page_bytes=bytes_per_page,
        group_cost=group_cost(shape, stored, device),
        sampling=sampling,
    )
    if store is not None:
        # Pages from other kernels must not be restored if bit-equal results are promised.
        computed = (arithmetic(),) if config.deterministic else ()
        described = (shape, config.page_size, stored, *computed)
        rotary.cover(2)
        ready.page_model = page_model(store, described, dtype, rotary.values, checkpoint.files)
        ready.host_pages = store.pool.places
    return LoadedModel(runner, ready, store)


def _explain_bad_logits(checkpoint: Checkpoint, used: Iterable[str], dtype: torch.dtype) -> None:
    """Raises ConfigError for a weight that is NaN or infinite; logs a warning if there is none.

    used: the names of all tensors that the model may have; the checkpoint may lack some
    """
    checkpoint.check_finite(sorted(checkpoint.names & set(used)))
    log.warning(
        "the logits of the test step are NaN or infinite, though all weights are finite: sums may be too "
        "large for %s. If requests fail, %s",
        str(dtype).removeprefix("torch."),
        "use another checkpoint" if dtype == torch.float32 else "try --dtype float32",
    )


def _undisturbed(store: PageStore | None) -> AbstractContextManager[None]:
    """A context in which no host memory is pinned, because pinning takes time and memory of the device."""
    return nullcontext() if store is None else store.pool.host_memory.undisturbed()


def _size_pool(
    config: ServeConfig, shape: DecoderConfig, dtype: torch.dtype, device: torch.device, graph_bytes: int
) -> PoolSize:
    context = context_length(shape, config.max_model_len)
    budget = _kv_budget(config, shape, dtype, device, graph_bytes)
    bytes_per_page = page_bytes(shape, config.page_size, kv_dtype(config, dtype))
    pool = size_pool(
        budget=budget,
        bytes_per_page=bytes_per_page,
        page_size=config.page_size,
        slots=config.max_running,
        context=context,
        context_was_asked=config.max_model_len is not None,
    )
    _check_room(config, pool.num_pages * bytes_per_page, device)
    if config.kv_memory is not None and pool.num_pages < budget // bytes_per_page:
        log.warning(
            "--kv-memory %s: only %s are used: %d requests (--max-running) of %s tokens can't fill more; for "
            "more raise --max-running",
            as_given(budget),
            in_units(pool.num_pages * bytes_per_page),
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


def _check_room(config: ServeConfig, kv_bytes: int, device: torch.device) -> None:
    """Raises ConfigError if the machine has no memory for the KV cache beside the loaded weights.

    Pages on the CPU take memory when `PageMemory` asks for it, so without this check the server would die
    later.
    """
    free = free_memory(device)
    kept = host_bytes(config) if device.type == "cpu" else 0
    if kv_bytes + kept <= free:
        return
    beside = f" and --host-cache {as_given(kept)}" if kept else ""
    given, needed = as_given(config.kv_memory or kv_bytes), in_units(kv_bytes, up=True)
    raise ConfigError(
        f"--kv-memory {given}: the KV cache would take {needed}{beside}, but beside the model only "
        f"{in_units(free)} are free. Lower --kv-memory, or leave it out for a size that fits."
    )


def _kv_budget(
    config: ServeConfig,
    shape: DecoderConfig,
    dtype: torch.dtype,
    device: torch.device,
    graph_bytes: int = 0,
) -> int:
    """Bytes for the KV cache. On the CPU the host tier takes a part of the same memory."""
    if config.kv_memory is not None:
        return config.kv_memory
    free = free_memory(device)
    kept = host_bytes(config) if device.type == "cpu" else 0
    if kept >= free:
        raise ConfigError(
            f"--host-cache {as_given(kept)}: beside the model only {in_units(free)} are free: lower it."
        )
    return default_budget(shape, dtype, device, free - kept, graph_bytes)
