"""Whole steps as CPU programs: from the last tokens to the next ones without Python in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ...kernels.attention.growing import GrowingRows, NewPage
from ...kernels.sampling.packed_results import PackedResults
from ...kernels.sampling.slots_cpu import SlotSampling
from ..messages import Row, RowGroup, StepPlan
from .decoder import Decoder
from .devices import HostCopies
from .input_batch import StepInputs
from .page_tables import PageTables
from .running_step import SampledRows
from .slot_states import SlotStates
from .step_programs import LoadedStep, Recorded, StepPrograms

MOST_LOGITS = 1 << 21
"""Logits of a step, as programs keep their memory. Steps with more spend little of their time in Python."""


@dataclass
class _Continued:
    """A step whose inputs can be updated in place for the next step, if each row has just one more token."""

    step: LoadedStep
    slots: NDArray[np.int32]
    starts: list[int]
    """of the rows of the next step"""
    groups: list[RowGroup]
    growing: GrowingRows
    tables: NDArray[np.int64]
    """addresses of the automata's tables"""
    wanted: NDArray[np.int32]
    """see `SampledRows`"""
    results: PackedResults


class WholeSteps:
    """Steps in which every output token's row samples, without masks of the host.

    A step of the same rows in decode, with one more token each, changes what the step before prepared.
    """

    def __init__(
        self,
        programs: StepPrograms,
        decoder: Decoder,
        states: SlotStates,
        windows: Sequence[int | None],
        tables: PageTables,
        vocab_size: int,
    ) -> None:
        self._programs, self._decoder, self._states = programs, decoder, states
        self._tables, self._vocab_size = tables, vocab_size
        self._shortest_window = min((window for window in windows if window is not None), default=None)
        self._sampling = SlotSampling(states.sampling, states.registers, vocab_size)
        self._last: _Continued | None = None

    def begin(self, plan: StepPlan, inputs: StepInputs) -> SampledRows | None:
        """Runs a step; None if no program can."""
        if len(inputs.sampled_rows) * self._vocab_size > MOST_LOGITS:
            return None
        step = self._programs.load(inputs, self._sample)
        if step is None:
            return None
        states, slots = self._states, inputs.sampled_slots
        wanted = states.logprobs[slots]
        tables = states.table_addresses()
        results = self._sampling.load(slots, tables, states.own_masks, states.alternatives(slots))
        self._last = self._continued(plan, step, slots, tables, wanted, results)
        return self._run(step.recorded, slots, wanted, results)

    def next(self, plan: StepPlan) -> SampledRows | None:
        """As `begin`, without inputs, for a step that continues the step before; None for others. Call it
        for every plan."""
        last, self._last = self._last, None
        if last is None or not self._continues(plan, last):
            return None
        pages = self._begun_pages(plan.rows)
        longest = max(last.starts) + 1
        if self._shortest_window is not None and longest > self._shortest_window:
            return None
        if not last.growing.grow(pages):
            return None
        self._move_on(last, pages)
        self._last = last
        return self._run(last.step.recorded, last.slots, last.wanted, last.results)

    def _sample(self, hidden: torch.Tensor) -> None:
        self._sampling.run(self._decoder.logits(hidden))

    def _run(
        self, recorded: Recorded, slots: NDArray[np.int32], wanted: NDArray[np.int32], results: PackedResults
    ) -> SampledRows:
        self._programs.run(recorded)
        self._states.sampling.move_on(slots)
        return SampledRows(slots, wanted, results, HostCopies([results.buffer]))

    def _continued(
        self,
        plan: StepPlan,
        step: LoadedStep,
        slots: NDArray[np.int32],
        tables: NDArray[np.int64],
        wanted: NDArray[np.int32],
        results: PackedResults,
    ) -> _Continued | None:
        if not all(row.sample and not row.tokens for row in plan.rows):
            return None
        (attention, *others) = dict.fromkeys(step.plans.values())
        growing = attention.growing()
        if others or growing is None or self._sampling.changes_by_position:
            return None
        starts = [row.start + 1 for row in plan.rows]
        return _Continued(step, slots, starts, plan.groups, growing, tables, wanted, results)

    def _continues(self, plan: StepPlan, last: _Continued) -> bool:
        rows = plan.rows
        if plan.setups or plan.restores or len(rows) != len(last.starts) or plan.groups != last.groups:
            return False
        if self._states.table_addresses() is not last.tables:
            return False
        return all(map(_is_next, rows, last.slots.tolist(), last.starts))

    def _begun_pages(self, rows: Sequence[Row]) -> list[NewPage]:
        """The rows whose tokens are the first ones of a page. They may have got it in an earlier step."""
        size = self._tables.page_size
        return [
            (index, int(self._tables.table(row.slot)[row.start // size]))
            for index, row in enumerate(rows)
            if row.start % size == 0
        ]

    def _move_on(self, last: _Continued, pages: Sequence[NewPage]) -> None:
        """Makes the inputs of the last step those of the next one."""
        batch = last.step.recorded.batch
        positions, places = batch.positions.numpy(), batch.places.numpy()
        positions += 1
        places += 1
        for row, page in pages:
            places[row] = page * self._tables.page_size
        last.starts = [start + 1 for start in last.starts]


def _is_next(row: Row, slot: int, start: int) -> bool:
    is_decode = row.sample and not (row.tokens or row.targets or row.host_mask)
    return row.slot == slot and row.start == start and is_decode
