"""Loads a model directory into a runner that is ready for its first step."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import torch

from ...kernels.common.processor import arithmetic
from ...kernels.common.vectors import LANES
from ...kernels.pages.cells import CellFormat
from ..byte_sizes import in_units
from ..config import ServeConfig
from ..errors import ConfigError
from ..messages import CacheGroup, GroupCost, ModelReady
from ..vocabulary import Vocabulary
from .adapters import AdapterBank, rank_limit
from .cpu_executor import CpuExecutor
from .description import describe_model
from .devices import choose_device, kv_dtype, outside_heap
from .drafts import DraftController, SuffixDrafter
from .executor import DeviceState, EagerExecutor, StepExecutor
from .interface.cache_spec import CacheSpec
from .interface.model import Model
from .kv_pool import PoolLayout, PoolSize, allocate_pool
from .memory_plan import limit_slots, plan_pages
from .model_source import ModelSource, open_model
from .page_memory import PageMemory
from .page_tables import PageTables
from .ranks import ONE_RANK, Ranks, check_gpus, find_least, wait_for_all
from .recurrent_states import RecurrentStates
from .runner import Runner
from .slot_states import SlotStates
from .tiers import PageMover, PageStore, host_bytes, open_page_store, page_model
from .warm_up import warm_up

if TYPE_CHECKING:
    from .cuda_executor import CudaExecutor  # Triton may be missing without a GPU

MAX_PAGE_SIZE = 256
MAX_DRAFTS = {"cpu": 64, "cuda": 256}
"""most drafts of a step, for which buffers of all rows have places, by the kind of device"""
CUDA_MIN_SHARED_TOKENS = 64
"""`GroupCost.min_shared_tokens` on a GPU, where only the cost of merging was measured"""
log = logging.getLogger(__name__)


class LoadedModel(NamedTuple):
    runner: Runner
    ready: ModelReady
    page_store: PageStore | None


def load_model(
    config: ServeConfig, load_vocabulary: Callable[[], Vocabulary], ranks: Ranks = ONE_RANK
) -> LoadedModel:
    """Loads the model, or this rank's part of it. Raises ConfigError for a model or settings that cannot be
    served, and CaptureError if CUDA can't be used after a failed capture of a graph: then another process can
    serve without graphs.

    `load_vocabulary` is called when the first grammar is loaded.
    """
    if not 1 <= config.page_size <= MAX_PAGE_SIZE:
        raise ConfigError(f"page_size {config.page_size}: must be 1 to {MAX_PAGE_SIZE} tokens.")
    device = choose_device(config)
    if device.type == "cuda":
        check_gpus(ranks, torch.cuda.get_device_name(device))
    source = open_model(config, device, ranks)
    if source.config.cache_spec.is_empty:
        # The scheduler gives each input of an encoder a page without memory.
        config = replace(config, page_size=source.context, host_cache=0)
    shape, cells = source.config, kv_dtype(config, source.dtype)
    is_stored = host_bytes(config) > 0
    # Page stores and CUDA graphs need pages of one shape.
    spec = shape.cache_spec.pad() if is_stored or device.type != "cpu" else shape.cache_spec
    state_bytes = spec.state_bytes(source.dtype)
    layout = PoolLayout.of(spec, config.page_size, cells, source.context, is_stored)
    if config.moves_prefill and (len(layout.groups) > 1 or state_bytes):
        option = "--prefill-at" if config.prefill_at else "--prefill-from"
        raise ConfigError(
            f"{option}: this model has layers with windows or states, and only pages of layers that see all "
            "tokens travel between servers. Leave it out."
        )
    pieces = layout.count_pieces(state_bytes)
    most = layout.count_places(pieces)
    store = open_page_store(config, layout.page_bytes[0], device, pieces, most, ranks.rank)
    max_rank = rank_limit(config)
    packed = source.open_packed_copy(config, device)
    with outside_heap():
        model = source.load(device, config.deterministic, packed)
    packed.start_writing()
    bank = AdapterBank(model, config.adapter_places, max_rank, device) if config.adapter_places else None
    adapter_bytes = 0 if bank is None else bank.bytes()
    mapped_bytes = packed.mapped_bytes
    slots = limit_slots(config, shape, source.dtype, device, adapter_bytes, mapped_bytes)
    config = replace(config, max_running=slots)
    max_drafts = _count_drafts(config, source, device)
    states = SlotStates(config.max_running, shape.vocab_size, device, load_vocabulary, max_drafts)
    tables = PageTables(config.max_running, source.context, config.page_size, device, layout.groups)
    graphs, graph_bytes = _open_graphs(
        config, model, spec, tables, states, cells, store, source.pooling is not None, ranks
    )
    wait_for_all(ranks)  # then all have loaded their weights, and each sees how much memory is left
    pool = plan_pages(config, shape, source.dtype, device, graph_bytes, layout, adapter_bytes, mapped_bytes)
    pool = _agree_on_pool(ranks, pool)
    model.set_context(pool.max_model_len)
    begin = time.monotonic()
    kvs = allocate_pool(spec, layout.layer_pages(pool.pages), config.page_size, cells, device)
    recurrent = None
    if pool.states:
        recurrent = RecurrentStates(spec, pool.states, config.max_running, source.dtype, device)
    if not spec.is_empty:
        log.info(
            "KV cache: %s tokens of %s in %s, allocated in %.1f s; running a test step",
            f"{pool.num_pages * config.page_size:,}",
            str(cells).removeprefix("torch."),
            in_units(layout.bytes(pool.num_pages)),
            time.monotonic() - begin,
        )
    adapters = [] if bank is None else bank.load_all(config.loras)
    pooling, pooler = source.open_pooler(model, config.max_running)
    state = DeviceState(model, kvs, tables, states, recurrent, pooler, bank)
    begin = time.monotonic()
    runner = _start_runner(config, source, state, pool, store, graphs, ranks)
    log.info("the test step took %.1f s", time.monotonic() - begin)
    ready = ModelReady(
        groups=[
            CacheGroup(len(group.layers), group.reach, pages, size, group.in_chunks)
            for group, pages, size in zip(layout.groups, pool.pages, layout.page_bytes, strict=True)
        ],
        page_size=config.page_size,
        max_model_len=pool.max_model_len,
        slots=config.max_running,
        vocab_size=shape.vocab_size,
        device=str(device),
        group_cost=group_cost(model.config.cache_spec, cells, device),
        sampling=source.sampling,
        adapters=adapters,
        adapter_places=config.adapter_places,
        max_sampled=1 + min(config.max_drafts, max_drafts),
        states=pool.states,
        state_bytes=state_bytes,
        pooling=pooling,
        model=describe_model(
            source.architecture.config,
            source.dtype,
            source.method,
            cells,
            "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device),
            torch.get_num_threads() if device.type == "cpu" else 0,
            ranks.rank.total,
        ),
    )
    if store is not None:
        # If bit-equal results are promised, pages that other kernels computed must not be restored.
        computed = (arithmetic(),) if config.deterministic else ()
        described = (shape, config.page_size, cells, layout.groups, *computed)
        positions = model.describe_positions()
        weights = source.checkpoint.files if store.tiers or config.moves_prefill else ()
        ready.page_model = page_model(store, described, source.dtype, positions, weights)
        ready.host_pages = store.pool.places
    return LoadedModel(runner, ready, store)


def _agree_on_pool(ranks: Ranks, pool: PoolSize) -> PoolSize:
    """Returns a pool for which every rank has enough memory."""
    *pages, context, states = find_least(ranks, (*pool.pages, pool.max_model_len, pool.states))
    return PoolSize(tuple(pages), context, states)


def _count_drafts(config: ServeConfig, source: ModelSource, device: torch.device) -> int:
    """The most drafts of a step. Recurrent layers allow none, because their states can't be taken back."""
    chosen = ("off" if device.type == "cuda" else "auto") if config.speculate is None else config.speculate
    reason = ""
    if source.pooling is not None:
        reason = "the model generates no tokens"
    elif source.config.cache_spec.states:
        reason = "the states of the model's recurrent layers can't be taken back"
    if reason and config.speculate not in (None, "off", 0):
        log.warning("--speculate %s has no effect: %s.", config.speculate, reason)
    if reason:
        return 0
    most = 0 if chosen == "off" else config.max_drafts
    made = f"drafts of at most {most} tokens for each request" if most else "no drafts"
    log.info("--speculate %s: %s", chosen, made)
    return min(MAX_DRAFTS[device.type], config.max_running * most)


def _open_graphs(
    config: ServeConfig,
    model: Model,
    spec: CacheSpec,
    tables: PageTables,
    states: SlotStates,
    cells: torch.dtype,
    store: PageStore | None,
    pools: bool,
    ranks: Ranks,
) -> tuple[CudaExecutor | None, int]:
    """On a GPU, an executor that has captured its first graphs, and the bytes that the others will take."""
    device = tables.on_device.device
    if device.type == "cpu" or config.enforce_eager or pools:
        return None, 0
    (is_recordable,) = find_least(ranks, [model.is_recordable])  # by the formats of this rank's weights
    if not is_recordable:
        return None, 0
    from .cuda_executor import CudaExecutor
    from .product_choice import choose_products

    with _undisturbed(store):
        choose_products(model)
        graphs = CudaExecutor(model, tables, states, config.adapter_places > 0, ranks.rank)
        # Triton would compile a 1 as a constant.
        few_pages = allocate_pool(spec, [2] * spec.layers, config.page_size, cells, device)
        return graphs, graphs.forward_bytes(few_pages)


def _start_runner(
    config: ServeConfig,
    source: ModelSource,
    state: DeviceState,
    pool: PoolSize,
    store: PageStore | None,
    graphs: CudaExecutor | None,
    ranks: Ranks,
) -> Runner:
    """A runner whose kernels are compiled, and whose graphs are captured."""
    device, page_memory = state.tables.on_device.device, list[list[PageMemory]]()
    executor: StepExecutor = EagerExecutor(state)
    if device.type == "cpu":
        page_memory = [[PageMemory(kvs, config.page_size) for kvs in shapes] for shapes in state.group_kvs]
        for memory in chain.from_iterable(page_memory):
            # Before the test step, which leaves a core idle. Later, the thread would slow the first requests.
            memory.start(everything=config.kv_memory is not None)
        if state.model.is_recordable and state.pooler is None and not config.enforce_eager:
            executor = CpuExecutor(state, config.deterministic)
    groups = [group.layers for group in state.tables.groups]
    mover = None
    if store is not None:
        mover = PageMover(state.kvs, store, states=state.recurrent, groups=groups)
    drafter, controller = None, None
    if state.states.max_drafts:
        drafter = SuffixDrafter(config.max_running)
        controller = DraftController(config.max_running) if config.speculate in ("auto", None) else None
    runner = Runner(state, executor, mover, page_memory, drafter, controller, ranks)
    if not warm_up(runner, state.model, pool, config):
        source.explain_bad_logits()
    if mover is not None:
        mover.warm_up()
    if graphs is None:
        return runner
    with _undisturbed(store):
        graphs.capture(state)  # only now, because the warm-up has compiled the kernels
    return Runner(state, graphs, mover, page_memory, drafter, controller, ranks)


def group_cost(spec: CacheSpec, stored: torch.dtype, device: torch.device) -> GroupCost:
    """When grouping rows pays on the device (see docs/kernels.md). stored: the dtype of the KV cache"""
    if device.type == "cpu" or not spec.layers:
        one_vector = LANES * spec.kv_heads // spec.heads
        return GroupCost(chunk_tokens=max(1, one_vector))
    from ...kernels.attention import FULL_REACH
    from ...kernels.attention.cuda import Shape, merged_tokens
    from ...kernels.attention.cuda_tiles import GROUP
    from ...kernels.attention.fixed_steps import LEVELS

    shape = Shape(spec.heads, spec.kv_heads, spec.head_dim, FULL_REACH)
    merged = merged_tokens(shape, CellFormat(stored).bytes(spec.head_dim))
    return GroupCost(
        merged,
        CUDA_MIN_SHARED_TOKENS,
        chunk_tokens=max(1, GROUP // shape.repeat),  # larger chunks would fill the largest tiles alone
        levels=LEVELS - 1,
    )


def _undisturbed(store: PageStore | None) -> AbstractContextManager[None]:
    """A context in which no host memory is pinned, because pinning takes time and memory of the device."""
    return nullcontext() if store is None else store.pool.host_memory.undisturbed()
