"""Sampling in buffers of fixed address and size, so that a CUDA graph of its launches can be replayed.

All launches run in every step: all filters, automata and, if any row's logits are edited, all
edits. A row without some part has values without effect; a padding row is greedy, in the padding slot.
The automata's tables move when they grow, so each step passes their addresses.
"""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from ..automaton import cuda as automaton
from ..automaton.layout import TABLES
from ..automaton.registers import SlotRegisters
from ..automaton.rows import AutomatonRows, TokenMask
from ..common.upload import FixedArrays
from .batch import Sampled, SamplingBatch
from .cuda import sample
from .record_cuda import record
from .state import BANNED, BIAS, PENALTIES, Array, SamplingState, assembled

MOST_LISTED = 4096
"""capacity for biases of a step, and for banned tokens"""
EDITS = (*BIAS, *BANNED, *PENALTIES)


class FixedSampling:
    """The sampling of steps of up to `rows` rows without log-probabilities."""

    def __init__(self, state: SamplingState, registers: SlotRegisters, rows: int) -> None:
        device = state.last_tokens.device
        state.history.reserve(state.padding_slot)
        self._state = state
        self._registers = registers
        self._numbers = FixedArrays(_numbers(rows, state.padding_slot), device)
        self._edits = FixedArrays(_edits(rows), device)
        self._tokens = torch.zeros(rows, dtype=torch.int32, device=device)
        self._bad = torch.zeros(rows, dtype=torch.bool, device=device)
        self._states = torch.zeros(rows, dtype=torch.int32, device=device)

    def load(self, slots: NDArray[np.int32], tables: NDArray[np.int64]) -> bool | None:
        """Prepares for rows that sample for distinct slots; tables: `AutomatonPool.addresses`.

        Returns whether logits are edited, or None, without writing anything, if the step exceeds the buffers.
        """
        arrays = self._state.arrays(slots)
        edited = not arrays.keys().isdisjoint(EDITS)
        if edited:
            if not self._edits.fits(arrays):
                return None
            self._edits.set(arrays)
        self._numbers.set({**arrays, "slots": slots, "tables": tables})
        return edited

    def run(self, logits: torch.Tensor, *, edited: bool) -> None:
        """Samples and records a token for each row of logits, float32 [rows, vocab]."""
        out = self.sampled(len(logits))
        batch = self._batch(len(logits), edited)
        sample(logits, batch, None, out)
        assert batch.automata is not None
        record(out.tokens, batch.automata.slots, self._state.last_tokens, batch.penalties)

    def sampled(self, rows: int) -> Sampled:
        """The results of the last step; valid until the next step runs."""
        return Sampled(self._tokens[:rows], self._bad[:rows], None, None, None, self._states[:rows])

    def _batch(self, rows: int, edited: bool) -> SamplingBatch:
        numbers = self._numbers.tensors
        followed = AutomatonRows(numbers["slots"][:rows], self._registers.values, None, numbers["tables"])
        own = self._registers.masks
        parts: Mapping[str, torch.Tensor] = {**numbers, **(self._edits.tensors if edited else {})}
        return assembled(
            {name: parts[name] if name in WHOLE else parts[name][:rows] for name in parts},
            self._state.history,
            mask=TokenMask(automaton.mask(followed, own), own),
            automata=followed,
        )


WHOLE = {*BIAS, *BANNED}


def _numbers(rows: int, padding_slot: int) -> dict[str, Array]:
    return {
        "seed": np.zeros(rows, np.int64),
        "tables": np.zeros(TABLES, np.int64),
        "position": np.zeros(rows, np.int32),
        "temperature": np.zeros(rows, np.float32),
        "top_k": np.zeros(rows, np.int32),
        "top_p": np.ones(rows, np.float32),
        "min_p": np.zeros(rows, np.float32),
        "slots": np.full(rows, padding_slot, np.int32),
    }


def _edits(rows: int) -> dict[str, Array]:
    """A padding row's list ends before it starts."""
    return {
        "bias_start": np.zeros(rows + 1, np.int32),
        "bias_ids": np.zeros(MOST_LISTED, np.int32),
        "bias_values": np.zeros(MOST_LISTED, np.float32),
        "banned_start": np.zeros(rows + 1, np.int32),
        "banned_ids": np.zeros(MOST_LISTED, np.int32),
        "entry": np.full(rows, -1, np.int32),
        "repetition": np.ones(rows, np.float32),
        "presence": np.zeros(rows, np.float32),
        "frequency": np.zeros(rows, np.float32),
    }
