"""Steps on a CPU as recorded programs: from the last tokens to the next ones without Python in between."""

from __future__ import annotations

import torch

from ...kernels.common.drafts import Drafts
from ...kernels.sampling.batch import HostMask
from ...kernels.sampling.packed_results import PackedResults
from ...kernels.sampling.slots_cpu import SlotSampling
from ..messages import StepPlan
from .continued_rows import ContinuedRows
from .executor import DeviceState, EagerExecutor
from .input_batch import StepInputs
from .recorded_steps import LoadedStep, RecordedStep, RecordedSteps
from .tiers import Restore

MAX_LOGITS = 1 << 21
"""Maximal logits of a step whose program samples, because programs keep their memory. Steps with more spend
little of their time in Python."""


class CpuExecutor:
    """Runs recorded programs of steps with few tokens.

    If every output token's row samples, without masks of the host, the program samples too. A step with the
    same rows in decode as the step before changes the inputs of that step in place, if a program of its size
    is recorded.
    """

    def __init__(self, device: DeviceState, batch_invariant: bool) -> None:
        states = device.states
        self._eager, self._model, self._states = EagerExecutor(device), device.model, states
        self._recorded = RecordedSteps(device, batch_invariant)
        self._sampling = SlotSampling(states.sampling, states.registers, states.vocab_size)
        self._rows: ContinuedRows | None = None
        """those of the last step, if its program samples and all of them are in decode"""
        self._program: RecordedStep | None = None
        """the program of this step if it samples and has the inputs"""
        self._results: PackedResults | None = None
        """results of the last step until `sample` is called"""

    def build_inputs(self, plan: StepPlan, drafts: Drafts | None) -> StepInputs | None:
        """As `StepExecutor.build_inputs`. If the plan continues the last step, also loads its program."""
        rows, self._rows, self._program = self._rows, None, None
        if rows is not None and rows.are_those_of(plan):
            self._program = self._recorded.find_decode(rows.count_tokens(drafts), rows.has_adapters)
            if self._program is not None:
                self._rows = rows
                return rows.load(self._program, drafts)
        return self._eager.build_inputs(plan, drafts)

    def run(self, inputs: StepInputs, restore: Restore | None) -> torch.Tensor:
        if restore is not None:
            return self._eager.run(inputs, restore)
        loaded = self._load(inputs) if self._program is None else None
        program = self._program if loaded is None else loaded.recorded
        if program is None:
            hidden = self._recorded.forward(inputs)
            return self._eager.run(inputs, None) if hidden is None else hidden
        slots, drafts, states = inputs.sampled_slots, inputs.drafts, self._states
        if drafts is not None:
            states.step_ahead(slots, drafts)
        self._results = self._sampling.lay_out(drafts)
        self._recorded.run(program)
        if drafts is not None:
            self._sampling.record_kept(slots, drafts)
        return program.hidden

    def sample(self, inputs: StepInputs, hidden: torch.Tensor, mask: HostMask | None) -> PackedResults:
        results, self._results = self._results, None
        return self._eager.sample(inputs, hidden, mask) if results is None else results

    def _load(self, inputs: StepInputs) -> LoadedStep | None:
        """Prepares a program that samples; None if the step can't have one."""
        states, slots, drafts = self._states, inputs.sampled_slots, inputs.drafts
        if not len(slots) or inputs.masked_slots or inputs.target_rows:
            return None
        if len(slots) * states.vocab_size > MAX_LOGITS:
            return None
        loaded = self._recorded.load(inputs, self._sample)
        if loaded is None:
            return None
        distinct = slots if drafts is None else slots[drafts.offsets == 0]
        self._sampling.load(distinct, states.table_addresses(), states.own_masks, inputs.alternatives)
        if all(row.samples and not row.tokens for row in inputs.rows):
            self._rows = ContinuedRows(inputs, loaded, states)
        return loaded

    def _sample(self, hidden: torch.Tensor) -> None:
        self._sampling.run(self._model.logits(hidden))
