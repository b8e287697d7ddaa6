"""A model in this process, and steps for it."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from typing import NoReturn

import numpy as np
from arbora.frontend.cli.main import build_parser, serve_config
from arbora.runtime.messages import TOKEN_BYTES, Row, SlotSetup, StepPlan
from arbora.runtime.model.devices import use_all_cores
from arbora.runtime.model.loading import load_model
from arbora.runtime.model.warm_up import ZeroDrafter
from arbora.runtime.sampling_params import SamplingParams


class Steps:
    """A model whose slots all decode, except the last: it has a prompt, of which a step computes a chunk."""

    def __init__(self, arguments: Sequence[str], decoding: int, keys: int) -> None:
        config = serve_config(vars(build_parser().parse_args(["serve", *arguments])), {})
        use_all_cores()
        self.runner, ready, _ = load_model(config, _no_vocabulary)
        self._random, self._step, self._setups = random.Random(0), 0, list[SlotSetup]()
        self._page_size = ready.page_size
        self._windows = len(ready.groups) - 1
        self._pages_of_slot = min(group.num_pages for group in ready.groups) // (decoding + 1)
        self._prompt, self._keys = decoding, keys
        self._lengths: dict[int, int] = {}
        self._pages: dict[int, int] = {}
        """of each slot"""
        self.choose_adapters(0)

    def choose_adapters(self, number: int) -> None:
        """Begins all slots anew: rows in decode use the first `number` adapters in turn, with 0 the base
        model."""
        self._adapters = number
        for slot in range(self._prompt):
            self._begin(slot)
            self._run([self._row(slot, self._keys)])

    def begin_prompt(self) -> None:
        self._begin(self._prompt)
        self._run([self._row(self._prompt, self._keys // 2)])

    def run(self, decode: int, chunk: int, drafts: int = 0) -> float:
        """Returns the milliseconds of a step: a token for each of `decode` slots, after which so many drafts
        are computed, and a chunk of a prompt."""
        rows = self._rows(decode, chunk, drafts)
        if not drafts:
            return self._run(rows)
        with self.runner.drafting_by(ZeroDrafter()):
            return self._run(rows)

    def plan(self, decode: int, chunk: int = 0) -> StepPlan:
        """The plan of such a step, for the runner."""
        return self._plan(self._rows(decode, chunk))

    def _rows(self, decode: int, chunk: int, drafts: int = 0) -> list[Row]:
        rows = [self._row(slot, 0, drafts) for slot in range(decode)]
        return [*rows, self._row(self._prompt, chunk)] if chunk else rows

    def _begin(self, slot: int) -> None:
        sampling = SamplingParams(max_tokens=1 << 20, temperature=0.0)
        adapter = slot % self._adapters if self._adapters else None
        self._setups.append(SlotSetup(slot=slot, sampling=sampling, adapter=adapter))
        self._lengths[slot] = self._pages[slot] = 0

    def _run(self, rows: list[Row]) -> float:
        plan = self._plan(rows)
        begin = time.perf_counter()
        result = self.runner.run(plan, lambda: None)
        taken = (time.perf_counter() - begin) * 1e3
        for row, count in zip(rows, np.frombuffer(result.counts, np.int32).tolist(), strict=True):
            self._lengths[row.slot] += len(row.tokens) // TOKEN_BYTES or count
        return taken

    def _plan(self, rows: list[Row]) -> StepPlan:
        self._step += 1
        plan, self._setups = StepPlan(self._step, rows, self._setups), []
        return plan

    def _row(self, slot: int, chunk: int, drafts: int = 0) -> Row:
        start, first = self._lengths[slot], slot * self._pages_of_slot
        given, needed = self._pages[slot], -(-(start + (chunk or 1 + drafts)) // self._page_size)
        assert needed <= self._pages_of_slot, "the KV cache is too small: raise --kv-memory"
        self._pages[slot] = max(given, needed)
        tokens = [self._random.randrange(10, 250) for _ in range(chunk)]
        return Row(
            slot=slot,
            start=start,
            tokens=np.array(tokens, np.int32).tobytes(),
            samples=0 if chunk else 1 + drafts,
            new_pages=(pages := np.arange(first + given, first + needed, dtype=np.int32).tobytes()),
            new_window_pages=[pages] * self._windows,
        )


def _no_vocabulary() -> NoReturn:
    raise AssertionError("no grammar is loaded")
