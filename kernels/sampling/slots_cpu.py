"""Sampling for slots as one kernel: mask, choose and record a token for each row, and step its automaton."""

import numba
import numpy as np
import torch
from numpy.typing import NDArray

from ..automaton.cpu import MANY, advance_row, mask_row, tables_at
from ..automaton.layout import MASKS, REGISTERS, TABLES
from ..automaton.rows import SlotRegisters
from ..common.drafts import DraftRows
from ..common.jit import compiled
from ..common.numba_tools import fetch_add, pointer
from ..common.threads import ParallelKernel
from . import row_cpu as column
from .batch import LOGPROB_FLOOR, SamplingBatch
from .cpu import collect_tensors, row_floats, row_integers
from .packed_results import INTEGERS as RESULTS
from .packed_results import PackedResults
from .record_cpu import NO_COUNTS, record_rows
from .row_cpu import allocate_scratch, array, sample_row
from .state import SamplingState

(SLOTS, SLOT_REGISTERS, LAST_TOKENS, STATES, OWN_MASKS, FIRST_TABLE) = range(
    column.ARGUMENTS, column.ARGUMENTS + 6
)
"""Columns of the block after those of `row_cpu`: addresses, and the index of the first row's mask in the
pool. LAST_TOKENS is 0 if no token is recorded."""
BLOCK_COLUMNS = FIRST_TABLE + TABLES

_FLOAT, _INT, _LONG = np.float32(0), np.int32(0), np.int64(0)


class SlotSampling:
    """The inputs of sampling at fixed addresses, so that a program can contain it: `load` → `lay_out` →
    `run`, and for later tokens of the same slots `lay_out` → `run`.

    A token is also recorded as its slot's last one, and counted for penalties. In a step with drafts
    `record_kept` does this afterwards, when it is known which tokens are kept.
    """

    def __init__(self, state: SamplingState, registers: SlotRegisters, vocab: int) -> None:
        rows = len(registers.row_numbers)
        self._state, self._vocab = state, vocab
        self._last_tokens, self._registers = state.last_tokens.numpy(), registers.values.numpy()
        self._ahead = None if registers.ahead is None else registers.ahead.numpy()
        self._last_tokens_at, self._registers_at = state.last_tokens.data_ptr(), registers.values.data_ptr()
        self._ahead_at = 0 if registers.ahead is None else registers.ahead.data_ptr()
        self._block = np.zeros(BLOCK_COLUMNS, np.int64)
        self._row_slots = np.zeros(rows, np.int32)
        self._drafts, self._no_drafts = np.zeros(rows, np.int32), DraftRows.without_drafts(rows)
        self._integers = np.zeros((rows, column.INTEGERS), np.int64)
        self._floats = np.zeros((rows, column.FLOATS), np.float32)
        self._slots = np.zeros(0, np.int32)
        self._slot_integers, self._slot_floats = self._integers[:0], self._floats[:0]
        """[slots]: the parameters of the loaded slots' rows"""
        self._batch: SamplingBatch | None = None
        """the loaded tensors, whose addresses the block holds"""
        self._alternatives: int | None = None
        self._output_counts = NO_COUNTS
        self._place_results(PackedResults.empty(0, None, torch.device("cpu")))

    def load(
        self,
        slots: NDArray[np.int32],
        tables: NDArray[np.int64],
        own_masks: int,
        alternatives: int | None,
    ) -> None:
        """Loads the parameters of distinct slots.

        tables, own_masks: see `AutomatonPool`. alternatives: how many to report with log-probabilities.
        """
        block, batch = self._block, self._state.gather(slots)
        self._batch, self._alternatives = batch, alternatives
        self._output_counts = NO_COUNTS if batch.penalties is None else batch.penalties.output_counts.numpy()
        self._slots, self._slot_integers, self._slot_floats = slots, row_integers(batch), row_floats(batch)
        block[:] = 0
        block[column.VOCAB] = self._vocab
        block[column.WITH_LOGPROBS], block[column.TOPS] = alternatives is not None, alternatives or 0
        block[column.ROW_INTEGERS] = self._integers.ctypes.data
        block[column.ROW_FLOATS] = self._floats.ctypes.data
        block[column.DRAFTS] = self._drafts.ctypes.data
        for place, tensor in collect_tensors(batch).items():
            block[place] = tensor.data_ptr()
        block[column.MASK_BITS] = tables[MASKS]
        block[SLOTS] = self._row_slots.ctypes.data
        block[OWN_MASKS] = own_masks
        block[FIRST_TABLE:] = tables
        self._place_results(PackedResults.empty(len(slots), alternatives, torch.device("cpu")))

    def lay_out(self, drafts: DraftRows | None) -> PackedResults:
        """Prepares the rows of a step, in which the loaded slots sample their next tokens, and moves their
        positions on by one token (see `SamplingState.accept`). Returns where the results will be.

        drafts: those of the loaded slots, for whose rows `SlotRegisters.ahead` has the registers; None: no
        slot has any
        """
        block, state = self._block, self._state
        if drafts is None:
            rows, laid_out = len(self._slots), self._no_drafts
            block[SLOT_REGISTERS], block[LAST_TOKENS] = self._registers_at, self._last_tokens_at
        else:
            assert self._ahead_at, "drafts were not announced"
            rows, laid_out = len(drafts.offsets), drafts
            block[SLOT_REGISTERS], block[LAST_TOKENS] = self._ahead_at, 0
        _lay_out_rows(
            (self._slots, self._slot_integers, self._slot_floats, state.positions, state.banned_until),
            (laid_out.offsets, laid_out.tokens),
            rows,
            drafts is not None,
            (self._row_slots, self._integers, self._floats, self._drafts),
        )
        if rows != self._results.capacity:
            self._place_results(PackedResults.empty(rows, self._alternatives, torch.device("cpu")))
        return self._results

    def run(self, logits: torch.Tensor) -> None:
        """Samples for the rows. logits: float32 [rows, vocab], contiguous"""
        assert logits.dtype == torch.float32 and logits.is_contiguous() and logits.shape[1] == self._vocab
        sample_slots.run((len(logits), logits.data_ptr(), self._block.ctypes.data), 1)

    def record_kept(self, slots: NDArray[np.int32], drafts: DraftRows) -> None:
        """Records the tokens that are kept of the rows that were laid out. slots: of each row"""
        assert self._ahead is not None, "drafts were not announced"
        tokens, bad, _ = self._result_rows
        entries = self._integers[: len(slots), column.ENTRY].astype(np.int32)
        counts, registers = self._output_counts, (self._ahead, self._registers)
        record_rows(slots, *drafts, tokens, bad, self._last_tokens, entries, counts, *registers, True)

    def _place_results(self, results: PackedResults) -> None:
        self._results, self._result_rows = results, results.integers(results.capacity)
        rows, start, tops = results.capacity, results.buffer.data_ptr(), results.alternatives
        places = [column.TOKENS, column.BAD, STATES]
        if tops is not None:
            places += [column.LOGPROBS, column.TOP_IDS]
            self._block[column.TOP_LOGPROBS] = start + 4 * rows * (RESULTS + 1 + tops)
        for index, place in enumerate(places):
            self._block[place] = start + 4 * rows * index


@compiled
def _lay_out_rows(of_slots, drafts, rows, has_drafts, of_rows):
    """Writes the parameters of each row: those of its slot, at the position after the drafts before it. Moves
    each slot's position on by one token."""
    slots, slot_integers, slot_floats, positions, banned_until = of_slots
    offsets, tokens = drafts
    row_slots, integers, floats, row_drafts = of_rows
    at = -1
    for row in range(rows):
        at += 1 if offsets[row] == 0 else 0
        slot = slots[at]
        integers[row], floats[row] = slot_integers[at], slot_floats[at]
        positions[slot] += 1 if offsets[row] == 0 else 0
        position = positions[slot] - 1 + offsets[row]
        integers[row, column.POSITION], integers[row, column.OFFSET] = position, offsets[row]
        if position >= banned_until[slot]:
            integers[row, column.BANNED_TO] = integers[row, column.BANNED_FROM]
        row_slots[row], row_drafts[row] = row if has_drafts else slot, tokens[row]


@ParallelKernel
def sample_slots(arguments):
    """Arguments: the counter of rows, their number, their logits, and the block of `SlotSampling`."""
    row = fetch_add(arguments, 1)
    if row < arguments[1]:
        _sample_from(arguments, row)


@compiled
def _sample_from(arguments, row):
    """Samples for `row`, then for the rows that this thread takes from the counter."""
    block = numba.carray(pointer(arguments[3], _LONG), (BLOCK_COLUMNS,))
    sizes = block[: column.ARGUMENTS].copy()
    rows = sizes[column.ROWS] = arguments[1]
    sizes[column.LOGITS] = arguments[2]
    vocab = sizes[column.VOCAB]
    maxima, scratch, values = allocate_scratch(vocab)
    slots = array(block[SLOTS], _INT, 1, rows)[0]
    registers = array(block[SLOT_REGISTERS], _INT, MANY, REGISTERS)
    tables = tables_at(block[FIRST_TABLE:], (vocab + 31) // 32)
    integers = array(sizes[column.ROW_INTEGERS], _LONG, rows, column.INTEGERS)
    tokens = array(sizes[column.TOKENS], _INT, 1, rows)[0]
    states = array(block[STATES], _INT, 1, rows)[0]
    while row < rows:
        slot = slots[row]
        own = registers[slot]
        integers[row, column.MASK] = mask_row(own, tables, block[OWN_MASKS] + row)
        _clear_logprobs(sizes, row)
        sample_row(sizes, row, maxima, scratch, values)
        states[row] = advance_row(own, tables, tokens[row])
        if block[LAST_TOKENS]:
            _record(sizes, block[LAST_TOKENS], slot, integers[row], tokens[row])
        row = fetch_add(arguments, 1)


@compiled
def _clear_logprobs(sizes, row):
    """Writes the log-probabilities that a row without finite logits reports."""
    if not sizes[column.WITH_LOGPROBS]:
        return
    rows, tops = sizes[column.ROWS], sizes[column.TOPS]
    array(sizes[column.LOGPROBS], _FLOAT, 1, rows)[0, row] = LOGPROB_FLOOR
    if tops > 0:
        array(sizes[column.TOP_IDS], _INT, rows, tops)[row] = 0
        array(sizes[column.TOP_LOGPROBS], _FLOAT, rows, tops)[row] = LOGPROB_FLOOR


@compiled
def _record(sizes, last_tokens, slot, integers, token):
    pointer(last_tokens, _INT)[slot] = token
    entry = integers[column.ENTRY]
    if entry >= 0:
        array(sizes[column.OUTPUT_COUNTS], _INT, entry + 1, sizes[column.VOCAB])[entry, token] += 1
