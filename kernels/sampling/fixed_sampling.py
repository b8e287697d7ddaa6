"""Sampling in buffers of fixed address and size, so that a CUDA graph of its launches can be replayed.

All launches of a variant run in every step: all filters, automata and, if any row's logits are edited, all
edits. A row without some part has values without effect; a padding row is greedy, in the padding slot.
The automata's tables move when they grow, so each step passes their addresses.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..automaton.layout import TABLES
from ..automaton.rows import AutomatonRows, SlotRegisters, TokenMask
from ..common.drafts import NO_DRAFT, DraftRows
from ..common.upload import FixedArrays, upload
from .batch import LISTED, HostMask, SamplingBatch, listed
from .cuda import sample
from .packed_results import PackedResults
from .record_cuda import record, record_kept
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
        numbers = _numbers(rows, state.padding_slot)
        if registers.ahead is not None:
            numbers |= _draft_numbers(rows, len(registers.row_numbers))
        self._numbers = FixedArrays(numbers, device)
        self._edits = FixedArrays(_edits(rows), device)
        self._host_bits = torch.zeros_like(registers.masks)
        self._results = {most: PackedResults.empty(rows, most, device) for most in (None, *LISTED)}

    def load(
        self,
        slots: NDArray[np.int32],
        tables: NDArray[np.int64],
        host_mask: HostMask | None = None,
        alternatives: int | None = None,
        drafts: DraftRows | None = None,
    ) -> Variant | None:
        """Prepares for rows that sample for slots, which are distinct if no slot has drafts. The masks of
        their automata, and with drafts the registers of each row, are written before `run`.

        tables: `AutomatonPool.addresses`

        Returns the variant to run, or None, without writing anything, if the step exceeds the buffers.
        """
        if drafts is None and self._registers.ahead is not None:
            drafts = DraftRows.without_drafts(len(slots))
        arrays = self._state.arrays(slots, drafts)
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
        if drafts is not None:
            arrays["place"] = np.arange(len(slots), dtype=np.int32)
        self._numbers.set({**arrays, "slots": slots, "tables": tables, "mask_index": index})
        return Variant(edited, most)

    def run(self, logits: torch.Tensor, variant: Variant) -> None:
        """Samples and records a token for each row of logits, float32 [rows, vocab]."""
        out = self.results(variant).rows(len(logits))
        batch = self._batch(len(logits), variant.edited)
        sample(logits, batch, variant.alternatives, out)
        slots, last_tokens = self._numbers.tensors["slots"][: len(logits)], self._state.last_tokens
        counted = None
        if batch.penalties is not None:
            counted = batch.penalties.entry, batch.penalties.output_counts
        if batch.drafts is None:
            record(out.tokens, slots, last_tokens, counted)
        else:
            record_kept(out, slots, batch.drafts, last_tokens, counted, self._registers)

    def results(self, variant: Variant) -> PackedResults:
        """The results of the last step of this variant; valid until its next step runs."""
        return self._results[variant.alternatives]

    def _batch(self, rows: int, edited: bool) -> SamplingBatch:
        numbers, edits = self._numbers.tensors, self._edits.tensors
        index, registers = numbers["mask_index"][:rows], self._registers
        places, values = numbers["slots"][:rows], registers.values
        if registers.ahead is not None:
            places, values = numbers["place"][:rows], registers.ahead
        followed = AutomatonRows(places, values, None, numbers["tables"], index)
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


def _draft_numbers(rows: int, padding_row: int) -> dict[str, Array]:
    """padding_row: the place of padding rows in `SlotRegisters.ahead`"""
    return {
        "offset": np.zeros(rows, np.int32),
        "draft": np.full(rows, NO_DRAFT, np.int32),
        "place": np.full(rows, padding_row, np.int32),
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
