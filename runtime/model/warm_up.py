"""Steps before the first request, which compile kernels and fill caches, on free pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray

from ...kernels.common.drafts import Drafts
from ...kernels.sampling import row_cpu
from ...kernels.sampling.warm_up import warm_up_sampling
from ..config import ServeConfig
from ..messages import PageCopy, Row, RowGroup, SlotEnd, SlotSetup, StepPlan
from ..sampling_params import SamplingParams
from .input_batch import ONE_TOKEN
from .interface.model import Model
from .kv_pool import PoolSize
from .runner import Runner

PROMPT = 32
CUDA_CHUNKS = (2, 8, 12, 20, 65, 200, 300)
"""tokens of chunks: one for each block size of the attention kernel, for any number of query heads per KV
head, and of the products with quantized weights"""
CUDA_GROUP = 17
"""number of rows in a group whose queries exceed the smallest block"""
GREEDY = SamplingParams(max_tokens=2, temperature=0.0)
FILTERED = SamplingParams(max_tokens=2, top_p=0.9, top_k=10, min_p=0.01)


def warm_up(runner: Runner, model: Model, pool: PoolSize, config: ServeConfig) -> bool:
    """Runs test steps. Returns whether all rows could be sampled; a row can't if one of its logits is NaN or
    the largest one is infinite.

    Leaves no state: slots are set up and pages written again before they are read.
    """
    if runner.pools:
        tokens = np.zeros(min(PROMPT, pool.max_model_len), np.int32).tobytes()
        pages = np.zeros(-(-PROMPT // config.page_size), np.int32).tobytes()
        windows = [pages] * (len(pool.pages) - 1)
        row = Row(0, tokens=tokens, samples=0, new_pages=pages, new_window_pages=windows, pools=True)
        return _run(runner, [StepPlan(step=0, rows=[row], setups=[SlotSetup(slot=0, sampling=GREEDY)])])
    if config.device == "cpu":
        row_cpu.sample_rows.load()  # because steps without a program sample by it
        return _run(runner, _one_row(0, PROMPT, pool, config, decodes=2))  # the second continues the first
    return warm_up_cuda(runner, model, pool, config, torch.device(config.device))


def warm_up_cuda(
    runner: Runner, model: Model, pool: PoolSize, config: ServeConfig, device: torch.device
) -> bool:
    """Compiles every kernel that a step of an ordinary request launches. Returns whether all
    rows could be sampled."""
    warm_up_sampling(model.config.vocab_size, device, with_drafts=runner.needs_tokens)
    limits = [reach.limit for reach in model.config.cache_spec.reaches]
    return _run(runner, cuda_plans(limits, pool, config))


def _run(runner: Runner, plans: Iterable[StepPlan]) -> bool:
    with runner.drafting_by(ZeroDrafter()) if runner.needs_tokens else nullcontext():
        results = [runner.run(plan, lambda: None) for plan in plans]
    return not any(result.errors for result in results)


class ZeroDrafter:
    """Drafts as many tokens as it may, all of them 0."""

    def set_up(self, setup: SlotSetup) -> None:
        pass

    def add(self, slots: NDArray[np.int32], tokens: NDArray[np.int32]) -> None:
        pass

    def end(self, end: SlotEnd) -> None:
        pass

    def forget(self, scope: str, namespace: str | None) -> None:
        pass

    def propose(self, slots: NDArray[np.int32], most: NDArray[np.int32]) -> Drafts:
        zeros = np.zeros_like(most)
        return Drafts(slots, most, np.zeros(int(most.sum()), np.int32), zeros, zeros)


def cuda_plans(limits: Sequence[int | None], pool: PoolSize, config: ServeConfig) -> Iterator[StepPlan]:
    """Steps that use every variant of the kernels; limits: the most tokens that a token
    sees in each layer; some steps are of rows beyond them."""
    starts = {0, *(limit for limit in limits if limit is not None)}
    for start, chunk in product(sorted(starts), CUDA_CHUNKS):
        yield from _one_row(start, chunk, pool, config)
    if config.adapter_places:
        yield from _one_row(0, PROMPT, pool, config, adapter=0)
    yield from _group(pool, config.page_size, min(config.max_running, CUDA_GROUP))


def _one_row(
    start: int,
    length: int,
    pool: PoolSize,
    config: ServeConfig,
    adapter: int | None = None,
    decodes: int = 1,
) -> Iterator[StepPlan]:
    """A chunk of `length` tokens after `start` others, then steps of one token, and a draft if rows may have
    drafts; shorter if the context is."""
    samples = 1 + min(1, config.max_drafts)
    sampled = decodes * samples
    end = min(start + length, pool.max_model_len - sampled)
    if end <= start:
        return
    pages = np.zeros(-(-(end + sampled) // config.page_size), np.int32).tobytes()
    tokens = np.zeros(end - start, np.int32).tobytes()
    setup = SlotSetup(slot=0, sampling=FILTERED, adapter=adapter)
    row = Row(0, start, tokens, new_pages=pages, new_window_pages=[pages] * (len(pool.pages) - 1))
    yield StepPlan(step=0, rows=[row], setups=[setup])
    for _ in range(decodes):
        yield StepPlan(step=0, rows=[Row(slot=0, samples=samples)])


def _group(pool: PoolSize, page_size: int, rows: int) -> Iterator[StepPlan]:
    """A plan of rows that share page 0, and of a copied page, as far as slots and pages suffice."""
    if rows < 2 or pool.max_model_len <= page_size or min(pool.pages) <= rows:
        return
    pages = [np.array([0, 1 + row], np.int32).tobytes() for row in range(rows)]
    yield StepPlan(
        step=0,
        rows=[
            Row(row, page_size, ONE_TOKEN, new_pages=own, new_window_pages=[own] * (len(pool.pages) - 1))
            for row, own in enumerate(pages)
        ],
        setups=[SlotSetup(slot=row, sampling=GREEDY) for row in range(rows)],
        copies=[PageCopy(0, 1, group) for group in range(len(pool.pages))],
        groups=[RowGroup(first_row=0, rows=rows, shared_tokens=page_size)],
    )
