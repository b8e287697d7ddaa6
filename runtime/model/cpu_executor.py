"""Steps on a CPU as recorded programs: from the last tokens to the next ones without Python in between."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ...kernels.attention.growing import GrowingRows, NewPage
from ...kernels.common.drafts import Drafts
from ...kernels.sampling.batch import HostMask
from ...kernels.sampling.packed_results import PackedResults
from ...kernels.sampling.slots_cpu import SlotSampling
from ..messages import StepPlan
from .executor import DeviceState, EagerExecutor
from .input_batch import StepInputs
from .recorded_steps import LoadedStep, RecordedSteps
from .tiers import Restore

MAX_LOGITS = 1 << 21
"""Maximal logits of a step whose program samples, because programs keep their memory. Steps with more spend
little of their time in Python."""


@dataclass
class _SampledStep:
    """A step whose program ends with sampling."""

    inputs: StepInputs
    loaded: LoadedStep
    results: PackedResults
    tables: NDArray[np.int64]
    """addresses of the automata's tables"""
    growing: list[tuple[int, GrowingRows]]
    """the rows, of each page group that layers use, whose inputs the next step may change in place; empty:
    the next step needs new inputs"""


class CpuExecutor:
    """Runs recorded programs of steps with few tokens.

    If every output token's row samples, without masks of the host, the program samples too. A step with the
    same rows in decode as the step before changes the inputs of that step in place.
    """

    def __init__(self, device: DeviceState, batch_invariant: bool) -> None:
        states = device.states
        self._eager, self._model = EagerExecutor(device), device.model
        self._tables, self._states = device.tables, states
        self._recorded = RecordedSteps(device, batch_invariant)
        limits = [reach.limit for reach in device.model.config.cache_spec.reaches]
        self._shortest_reach = min((limit for limit in limits if limit is not None), default=None)
        self._sampling = SlotSampling(states.sampling, states.registers, states.vocab_size)
        self._last: _SampledStep | None = None
        """the last step if its program samples"""
        self._results: PackedResults | None = None
        """results of the last step until `sample` is called"""

    def build_inputs(self, plan: StepPlan, drafts: Drafts | None) -> StepInputs | None:
        """As `StepExecutor.build_inputs`. If the plan continues the last step, returns its inputs again."""
        last, self._last = self._last, None
        if last is not None and drafts is None and self._move_on(last, plan):
            self._last = last
            return last.inputs
        return self._eager.build_inputs(plan, drafts)

    def run(self, inputs: StepInputs, restore: Restore | None) -> torch.Tensor:
        if restore is not None:
            return self._eager.run(inputs, restore)
        if self._last is None:
            self._last = self._load(inputs)
        if self._last is not None:
            self._recorded.run(self._last.loaded.recorded)
            self._results = self._last.results
            if inputs.drafts is None:
                self._states.sampling.move_on(inputs.sampled_slots)
            else:
                sampled = self._results.rows(len(inputs.sampled_slots))
                self._states.record(inputs.sampled_slots, sampled, inputs.drafts)
            return self._last.loaded.recorded.hidden
        hidden = self._recorded.forward(inputs)
        return self._eager.run(inputs, None) if hidden is None else hidden

    def sample(self, inputs: StepInputs, hidden: torch.Tensor, mask: HostMask | None) -> PackedResults:
        results, self._results = self._results, None
        return self._eager.sample(inputs, hidden, mask) if results is None else results

    def _load(self, inputs: StepInputs) -> _SampledStep | None:
        """Prepares a program that samples; None if the step can't have one."""
        states, slots = self._states, inputs.sampled_slots
        if not len(slots) or inputs.masked_slots or inputs.target_rows:
            return None
        if len(slots) * states.vocab_size > MAX_LOGITS:
            return None
        loaded = self._recorded.load(inputs, self._sample)
        if loaded is None:
            return None
        tables, drafts = states.table_addresses(), inputs.drafts
        if drafts is not None:
            states.step_ahead(slots, drafts)
        results = self._sampling.load(slots, tables, states.own_masks, inputs.alternatives, drafts)
        return _SampledStep(inputs, loaded, results, tables, self._prepare_growth(inputs, loaded))

    def _sample(self, hidden: torch.Tensor) -> None:
        self._sampling.run(self._model.logits(hidden))

    def _prepare_growth(self, inputs: StepInputs, loaded: LoadedStep) -> list[tuple[int, GrowingRows]]:
        if (
            inputs.drafts is not None
            or self._sampling.changes_by_position
            or not all(row.samples and not row.tokens for row in inputs.rows)
        ):
            return []
        plans = dict.fromkeys((group, plan) for (group, *_), plan in loaded.plans.items())
        growing = [(group, rows) for group, plan in plans if (rows := plan.growing()) is not None]
        has_one_each = len({group for group, _ in plans}) == len(plans) == len(growing)
        return growing if has_one_each else []

    def _has_same_rows(self, plan: StepPlan, last: _SampledStep) -> bool:
        if plan.setups or plan.restores or plan.groups != last.inputs.groups:
            return False
        if self._states.table_addresses() is not last.tables:
            return False
        decoding = [row.slot for row in plan.rows if row.samples and not (row.tokens or row.host_mask)]
        return len(decoding) == len(plan.rows) and decoding == last.inputs.sampled_slots.tolist()

    def _move_on(self, last: _SampledStep, plan: StepPlan) -> bool:
        """Turns the inputs of the last step into the next step's; False if that needs new inputs."""
        if not last.growing or not self._has_same_rows(plan, last):
            return False
        slots = last.inputs.sampled_slots.astype(np.int64)
        starts = self._tables.lengths[slots]
        if self._shortest_reach is not None and starts.max() >= self._shortest_reach:
            return False
        if not all(rows.grow(self._find_begun_pages(group, slots, starts)) for group, rows in last.growing):
            return False
        tokens = self._tables.extend(slots, starts, np.zeros_like(starts))
        batch = last.loaded.recorded.batch
        batch.positions.numpy()[:] = tokens.positions
        for group, places in zip(batch.groups, self._tables.places(slots, tokens), strict=True):
            group.places.numpy()[:] = places
        return True

    def _find_begun_pages(
        self, group: int, slots: NDArray[np.int64], starts: NDArray[np.int64]
    ) -> list[NewPage]:
        """The rows whose tokens are the first on a page. An earlier step may have given them the page."""
        size = self._tables.page_size
        return [
            (row, int(self._tables.table(slot, group)[start // size]))
            for row, (slot, start) in enumerate(zip(slots.tolist(), starts.tolist(), strict=True))
            if start % size == 0
        ]
