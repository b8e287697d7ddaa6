"""Sampling in buffers of fixed address and size, so that a CUDA graph of its launches can be replayed.

All launches of a variant run in every step: all filters, automata and, if any row's logits are edited, all
edits. A row without some part has values without effect; a padding row is greedy, in the padding slot.
The automata's tables move when they grow, so each step passes their addresses.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from ..automaton.layout import TABLES
from ..automaton.rows import AutomatonRows, SlotRegisters, TokenMask
from ..common.upload import FixedArrays, upload
from .batch import LISTED, HostMask, Penalties, SamplingBatch, listed
from .cuda import sample
from .packed_results import PackedResults
from .state import BANNED, BIAS, PENALTIES, Array, SamplingState, assemble

MAX_LISTED = 4096
"""maximal number of biases in a step, and of banned tokens"""
EDITS = (*BIAS, *BANNED, *PENALTIES)


class Variant(NamedTuple):
    """Which launches a step's sampling has."""

    edited: bool
    """whether host masks, biases, bans or penalties change the logits"""
    alternatives: int | None = None
    """alternatives to report with log-probabilities; None: no log-probabilities"""


VARIANTS = (Variant(True), Variant(False), *(Variant(True, most) for most in LISTED))


class FixedSampling:
    """The sampling of steps of up to `rows` rows."""

    def __init__(self, state: SamplingState, registers: SlotRegisters, rows: int) -> None:
        self._device = device = state.last_tokens.device
        state.history.reserve(state.padding_slot)
        self._state = state
        self._registers = registers
        self._numbers = FixedArrays(_numbers(rows, state.padding_slot), device)
        self._edits = FixedArrays(_edits(rows), device)
        self._host_bits = torch.zeros_like(registers.masks)
        self._results = {most: PackedResults.empty(rows, most, device) for most in (None, *LISTED)}

    def load(
        self,
        slots: NDArray[np.int32],
        tables: NDArray[np.int64],
        host_mask: HostMask | None = None,
        alternatives: int | None = None,
    ) -> Variant | None:
        """Prepares for rows that sample for distinct slots, whose automata's masks are written before `run`.

        tables: `AutomatonPool.addresses`

        Returns the variant to run, or None, without writing anything, if the step exceeds the buffers.
        """
        arrays = self._state.arrays(slots)
        most = None if alternatives is None else listed(alternatives)
        edited = not arrays.keys().isdisjoint(EDITS) or host_mask is not None or most is not None
        if most not in self._results or not self._edits.fits(arrays):
            return None
        if host_mask is not None:
            arrays["host_mask"] = host_mask.index
            (bits,) = upload([host_mask.bits], self._device)
            self._host_bits[: len(bits)].copy_(bits)
        if edited:
            self._edits.set(arrays)
        index = self._registers.mask_index(slots)
        self._numbers.set({**arrays, "slots": slots, "tables": tables, "mask_index": index})
        return Variant(edited, most)

    def run(self, logits: torch.Tensor, variant: Variant) -> None:
        """Samples and records a token for each row of logits, float32 [rows, vocab]."""
        out = self.results(variant).rows(len(logits))
        batch = self._batch(len(logits), variant.edited)
        sample(logits, batch, variant.alternatives, out)
        assert batch.automata is not None
        record(out.tokens, batch.automata.slots, self._state.last_tokens, batch.penalties)

    def results(self, variant: Variant) -> PackedResults:
        """The results of the last step of this variant; valid until its next step runs."""
        return self._results[variant.alternatives]

    def _batch(self, rows: int, edited: bool) -> SamplingBatch:
        numbers, edits = self._numbers.tensors, self._edits.tensors
        index = numbers["mask_index"][:rows]
        followed = AutomatonRows(
            numbers["slots"][:rows], self._registers.values, None, numbers["tables"], index
        )
        parts: Mapping[str, torch.Tensor] = {**numbers, **(edits if edited else {})}
        return assemble(
            {name: parts[name] if name in WHOLE else parts[name][:rows] for name in parts},
            self._state.history,
            mask=TokenMask(index, self._registers.masks),
            host_mask=TokenMask(edits["host_mask"][:rows], self._host_bits) if edited else None,
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
        "mask_index": np.full(rows, -1, np.int32),
    }


def _edits(rows: int) -> dict[str, Array]:
    """The batch's edits of the logits. A padding row's lists are empty: each ends before it starts."""
    return {
        "host_mask": np.full(rows, -1, np.int32),
        "bias_start": np.zeros(rows + 1, np.int32),
        "bias_ids": np.zeros(MAX_LISTED, np.int32),
        "bias_values": np.zeros(MAX_LISTED, np.float32),
        "banned_start": np.zeros(rows + 1, np.int32),
        "banned_ids": np.zeros(MAX_LISTED, np.int32),
        "entry": np.full(rows, -1, np.int32),
        "repetition": np.ones(rows, np.float32),
        "presence": np.zeros(rows, np.float32),
        "frequency": np.zeros(rows, np.float32),
    }


@triton.jit
def record_kernel(tokens, slots, last_tokens, entries, output_counts, vocab):
    """Records a row's token in one program. entries and output_counts are None if no row has penalties."""
    row = tl.program_id(0)
    token = tl.load(tokens + row)
    tl.store(last_tokens + tl.load(slots + row), token)
    if entries is not None:
        entry = tl.load(entries + row).to(tl.int64)
        if entry >= 0:
            count = output_counts + entry * vocab + token
            tl.store(count, tl.load(count) + 1)


def record(
    tokens: torch.Tensor, slots: torch.Tensor, last_tokens: torch.Tensor, penalties: Penalties | None
) -> None:
    """Records tokens, int32 [rows], as their slots' last ones. Of rows with the same slot, any one wins."""
    if penalties is None:
        record_kernel[(len(tokens),)](tokens, slots, last_tokens, None, None, 0, num_warps=1)
        return
    counts = penalties.output_counts
    record_kernel[(len(tokens),)](
        tokens, slots, last_tokens, penalties.entry, counts, counts.shape[1], num_warps=1
    )
