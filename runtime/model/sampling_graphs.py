"""Sampling as CUDA graphs: from hidden states to recorded tokens in one launch."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray

from ...kernels.linear import Linear
from ...kernels.sampling import Sampled
from ...kernels.sampling.fixed_sampling import FixedSampling
from .capture import Capture, holding, sizes
from .slot_states import SlotStates


class SamplingGraphs:
    """The model's head and sampling, with the rows' automata, for some numbers of rows.

    There are two graphs for each number: with edits of the logits (biases, bans, penalties) and without. They
    do not run steps with log-probabilities or host masks.
    """

    @torch.inference_mode()
    def __init__(
        self,
        head: Linear,
        states: SlotStates,
        rows: int,
        dtype: torch.dtype,
        capture: Capture,
    ) -> None:
        """head: hidden → vocab, in dtype; rows: the most rows of a step"""
        device = states.sampling.last_tokens.device
        self._head = head
        self._states = states
        self._sampling = FixedSampling(states.sampling, states.registers, rows)
        self._hidden = torch.zeros(rows, head.in_features, dtype=dtype, device=device)
        self._logits = torch.empty(rows, head.out_features, device=device)
        self._sizes = sizes(rows)
        # The largest first, so that the others fit into its memory.
        self._graphs = {
            (size, edited): capture(partial(self._sample, size, edited))
            for size, edited in product(reversed(self._sizes), (True, False))
        }

    def sample(self, slots: NDArray[np.int32], hidden: torch.Tensor) -> tuple[torch.Tensor, Sampled] | None:
        """The logits of distinct slots and the tokens sampled from them, which the slots record.

        hidden: [rows, hidden]. The next call overwrites the results; None if no graph holds the step.
        """
        edited = self._sampling.load(slots, self._states.table_addresses())
        if edited is None:
            return None
        rows = len(slots)
        self._hidden[:rows].copy_(hidden)
        self._graphs[holding(rows, self._sizes), edited]()
        self._states.sampling.move_on(slots)
        return self._logits[:rows], self._sampling.sampled(rows)

    def _sample(self, rows: int, edited: bool) -> None:
        logits = self._logits[:rows]
        logits.copy_(self._head(self._hidden[:rows]))
        self._sampling.run(logits, edited=edited)
