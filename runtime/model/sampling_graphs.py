"""Sampling as CUDA graphs: from hidden states to recorded tokens in one launch."""

from __future__ import annotations

from functools import partial
from itertools import product

import torch

from ...kernels.common.drafts import DraftRows
from ...kernels.sampling.batch import HostMask
from ...kernels.sampling.fixed_sampling import VARIANTS, FixedSampling, Variant
from ...kernels.sampling.packed_results import PackedResults
from .capture import Captures, Replay, choose_sizes, find_size
from .input_batch import StepInputs
from .interface.model import Model
from .slot_states import SlotStates


class SamplingGraphs:
    """Graphs of the model's head and of sampling, automata included, for several numbers of rows.

    The automata's masks are written earlier: by the forward pass's graph, or by `sample` if the forward pass
    ran without a graph.

    There are four graphs for each number: with edits of the logits (masks of the host, biases, bans,
    penalties) and without, and with edits and two numbers of log-probabilities.
    """

    @torch.inference_mode()
    def __init__(self, model: Model, states: SlotStates, hidden: torch.Tensor, captures: Captures) -> None:
        """hidden: [rows, hidden], which the graphs read, with as many rows as a step
        can have"""
        rows = len(hidden)
        self._model = model
        self._states = states
        self._sampling = FixedSampling(states.sampling, states.registers, rows)
        self._hidden = hidden
        self._sizes = choose_sizes(rows)
        self._graphs: dict[tuple[int, Variant], Replay] = {}
        # Captures the largest first, so that the others fit into its memory.
        for size, variant in product(reversed(self._sizes), VARIANTS):
            replay = captures.capture(partial(self._sample, size, variant), f"{size} rows")
            if replay is not None:
                self._graphs[size, variant] = replay

    def sample(
        self, inputs: StepInputs, hidden: torch.Tensor, host_mask: HostMask | None
    ) -> PackedResults | None:
        """Runs `StepExecutor.sample` as a graph; None if no graph holds the step."""
        slots = inputs.sampled_slots
        size = find_size(len(slots), self._sizes)
        if any((size, variant) not in self._graphs for variant in VARIANTS):
            return None
        tables, drafts = self._states.table_addresses(), inputs.drafts
        variant = self._sampling.load(slots, tables, host_mask, inputs.alternatives, drafts)
        if variant is None:
            return None
        if hidden.data_ptr() != self._hidden.data_ptr():
            self._hidden[: len(slots)].copy_(hidden[: len(slots)])
            if drafts is None and self._states.max_drafts:
                drafts = DraftRows.without_drafts(len(slots))
            self._states.write_masks(slots, drafts)
        self._graphs[size, variant]()
        self._states.sampling.move_on(slots)
        return self._sampling.results(variant)

    def _sample(self, rows: int, variant: Variant) -> None:
        self._sampling.run(self._model.logits(self._hidden[:rows]), variant)
