"""Rows in decode whose next steps change the inputs of the step before, in place of building new ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...kernels.adapters import group_rows
from ...kernels.attention import Reach
from ...kernels.attention.cpu import CpuAttention
from ...kernels.common.drafts import DraftRows, Drafts
from ..messages import StepPlan
from .input_batch import StepInputs, find_visible
from .recorded_steps import LoadedStep, RecordedStep
from .slot_states import SlotStates


class ContinuedRows:
    """The rows of a step that only decodes. Later steps of the same rows may have any drafts.

    Positions and pages follow from the page tables, which the model process owns. The division of attention's
    keys is planned anew, the runs of pages only when a row begins a page that had none.
    """

    def __init__(self, inputs: StepInputs, loaded: LoadedStep, states: SlotStates) -> None:
        tables, slots = inputs.tables, np.array([row.slot for row in inputs.rows], np.int64)
        self._tables, self._slots, self._states = tables, slots, states
        self._table_addresses = states.table_addresses()
        self._slot_list, self._groups = slots.tolist(), inputs.groups
        self._no_drafts = np.zeros(len(slots), np.int32)
        self._adapters = None if inputs.adapters is None else states.adapters[slots]
        self._attention: dict[tuple[int, Reach], CpuAttention] = {}
        for (group, reach, _), plan in loaded.plans.items():
            self._attention.setdefault((group, reach), plan.copy())
        sampled = slots.astype(np.int32)
        self._inputs = replace(
            inputs,
            tokens=np.zeros_like(sampled),
            sampled_slots=sampled,
            drafts=None,
            logprobs=states.logprobs[slots],
        )

    @property
    def has_adapters(self) -> bool:
        return self._adapters is not None

    def are_those_of(self, plan: StepPlan) -> bool:
        """Whether a plan's rows are these, and nothing but their tokens has changed."""
        if plan.setups or plan.restores or plan.groups != self._groups:
            return False
        if self._states.table_addresses() is not self._table_addresses:
            return False
        decoding = [row.slot for row in plan.rows if row.samples and not (row.tokens or row.host_mask)]
        return len(decoding) == len(plan.rows) and decoding == self._slot_list

    def count_tokens(self, drafts: Drafts | None) -> int:
        """The tokens of a step with these drafts."""
        return len(self._slots) + (0 if drafts is None else len(drafts.tokens))

    def load(self, recorded: RecordedStep, drafts: Drafts | None) -> StepInputs:
        """Gives a program the inputs of the next step, and extends the slots' lengths. Of the returned inputs
        only what tells about sampling is the step's own."""
        tables, slots = self._tables, self._slots
        counts = self._no_drafts if drafts is None else drafts.counts
        tokens = tables.extend_decode(slots, counts)
        of_rows = None if drafts is None else DraftRows.of(counts, drafts.tokens)
        recorded.load_decode(tokens, tables.places(slots, tokens), of_rows)
        if self._adapters is not None:
            recorded.load_adapters([group_rows(np.repeat(self._adapters, tokens.lengths), len(tokens.slots))])
        lengths = tokens.positions[tokens.ends - 1] + 1
        longest = int(lengths.max())
        for (group, reach), plan in self._attention.items():
            if plan.lacks_pages(lengths):
                plan.set_pages([tables.table(slot, group) for slot in self._slot_list])
            visible = tuple(find_visible(self._groups, tables.groups[group], lengths))
            plan.plan_step(tokens.lengths, lengths, longest, visible, reach)
        recorded.set_attention({kind: self._attention[kind[:2]] for kind in recorded.attention})
        if of_rows is None:
            return self._inputs
        sampled = np.repeat(self._inputs.sampled_slots, tokens.lengths)
        logprobs = self._states.logprobs[sampled]
        return replace(
            self._inputs, tokens=of_rows.tokens, sampled_slots=sampled, drafts=of_rows, logprobs=logprobs
        )
