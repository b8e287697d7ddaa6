"""The kernels that exchange tensors between ranks.

Every rank reads the parts of all ranks and adds them in the same order, so all ranks hold the same bits.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from ..common.jit import compiled
from ..common.numba_tools import KIND, fetch_add, load, pause, pointer, read_counter, shift, store
from ..common.teams import LINE
from ..common.threads import PIECE, ParallelKernel, thread_count
from ..common.waiting import BETWEEN_PROCESSES, wait_until, wake_waiting
from .memory import ARRIVALS, EXCHANGES, SLEEPING, SLOT_BYTES, RankMemory

COPIED_BYTES = 16 << 10
"""bytes that a thread copies at a time"""
SUMMED_BYTES = 1 << 20
"""Bytes of a part that are exchanged at a time, at most: so they are still in a cache when they are read."""

WRITTEN, NUMBER, TAKEN, COUNTERS, HALVES, RANK, RANKS, FUTEX_CALL, SOURCE, BYTES, TARGET = range(1, 12)
"""Places of the arguments of all exchanges. WRITTEN counts the copied pieces of this rank's part, NUMBER is
that of the exchange, from 1, once a thread has set it, and TAKEN counts the pieces of the result that threads
have taken. The next five are `RankMemory.arguments`. SOURCE and BYTES are this rank's part; TARGET is where
the result is written."""
WIDTHS, ROWS, WIDTH = range(12, 15)
"""Places of the further arguments of `join_parts`: where the bytes of each rank's rows are, int64; the number
of rows; and the bytes of a row of the result."""


def sum_in_place(memory: RankMemory, x: torch.Tensor) -> None:
    """Replaces x, contiguous, by the sum of the tensors of all ranks. It is added in float32 and rounded
    once."""
    assert x.is_contiguous()
    for begin in range(0, x.nbytes, SUMMED_BYTES):
        size, at = min(SUMMED_BYTES, x.nbytes - begin), x.data_ptr() + begin
        arguments = (0, 0, 0, *memory.arguments, at, size, at)
        SUMS[x.dtype].run(arguments, thread_count(size // x.itemsize))


def join_columns(memory: RankMemory, part: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
    """Concatenates the parts of all ranks along dimension 1. part: [rows, width of this rank], contiguous;
    widths: those of all ranks"""
    assert part.is_contiguous() and part.shape[1] == widths[memory.rank]
    rows, joined = len(part), torch.empty(len(part), sum(widths), dtype=part.dtype)
    row_bytes, own_bytes = joined.shape[1] * part.itemsize, part.shape[1] * part.itemsize
    of_ranks = _row_bytes(tuple(widths), part.itemsize)
    step = SLOT_BYTES // int(of_ranks.max())
    assert step, f"a row of {of_ranks.max():,} bytes does not fit in a slot"
    for begin in range(0, rows, step):
        count = min(step, rows - begin)
        source = part.data_ptr() + begin * own_bytes, count * own_bytes
        target = joined.data_ptr() + begin * row_bytes
        arguments = (0, 0, 0, *memory.arguments, *source, target, of_ranks.ctypes.data, count, row_bytes)
        join_parts.run(arguments, thread_count(count * joined.shape[1]))
    return joined


def gather(memory: RankMemory, values: Sequence[float]) -> NDArray[np.float64]:
    """The values of all ranks, [ranks, values]. Returns when all ranks have called it."""
    own = torch.tensor([values], dtype=torch.float64)
    gathered = join_columns(memory, own, [len(values)] * memory.ranks)
    return gathered.numpy().reshape(memory.ranks, -1)


@cache
def _row_bytes(widths: tuple[int, ...], item_bytes: int) -> NDArray[np.int64]:
    """The bytes of each rank's rows. They are kept, because programs read them later."""
    return np.array(widths, np.int64) * item_bytes


@compiled
def _write(arguments):
    """Copies this rank's part to its slot. The last thread tells the other ranks."""
    size, source = arguments[BYTES], pointer(arguments[SOURCE], np.uint8(0))
    pieces = (size + COPIED_BYTES - 1) // COPIED_BYTES
    while True:
        piece = fetch_add(arguments, 1)
        if piece >= pieces:
            break
        if piece == 0:
            begun = _counter(arguments, EXCHANGES + LINE * arguments[RANK])
            fetch_add(shift(arguments, NUMBER), fetch_add(begun, 1) + 1)
        target = _slot(arguments, arguments[RANK], np.uint8(0))
        for i in range(piece * COPIED_BYTES, min(size, (piece + 1) * COPIED_BYTES)):
            target[i] = source[i]
        if fetch_add(shift(arguments, WRITTEN), 1) == pieces - 1:
            arrivals = _counter(arguments, ARRIVALS)
            fetch_add(arrivals, 1)
            sleeping = _counter(arguments, SLEEPING)
            wake_waiting(arrivals, sleeping, arguments[FUTEX_CALL], BETWEEN_PROCESSES)


@compiled
def _take(arguments, pieces):
    """Takes a piece of the result when all ranks have written their parts. Returns its number; `pieces` or
    more if all are taken."""
    piece = fetch_add(shift(arguments, TAKEN), 1)
    if piece < pieces:
        arrivals, sleeping = _counter(arguments, ARRIVALS), _counter(arguments, SLEEPING)
        target = _number(arguments) * arguments[RANKS]
        wait_until(arrivals, target, sleeping, arguments[FUTEX_CALL], BETWEEN_PROCESSES)
    return piece


@compiled
def _number(arguments):
    """The number of the exchange, which the thread that takes the first piece sets at once."""
    number = read_counter(shift(arguments, NUMBER))
    while number == 0:
        pause()
        number = read_counter(shift(arguments, NUMBER))
    return number


@compiled
def _counter(arguments, place):
    return shift(pointer(arguments[COUNTERS], np.int64(0)), place)


@compiled
def _slot(arguments, rank, kind):
    """Where a rank's part of this exchange is."""
    slot = _number(arguments) % 2 * arguments[RANKS] + rank
    return pointer(arguments[HALVES] + slot * SLOT_BYTES, kind)


@compiled
def _sum_parts(arguments, kind, item_bytes):
    """Arguments: the counter of copied pieces, then those above. item_bytes: of an element"""
    _write(arguments)
    count = arguments[BYTES] // item_bytes
    target = pointer(arguments[TARGET], kind)
    pieces = (count + PIECE - 1) // PIECE
    while True:
        piece = _take(arguments, pieces)
        if piece >= pieces:
            break
        first = _slot(arguments, 0, kind)
        second = _slot(arguments, 1, kind)
        begin, end = piece * PIECE, min(count, (piece + 1) * PIECE)
        if arguments[RANKS] == 2:
            for i in range(begin, end):
                store(target, i, load(first, i) + load(second, i))
            continue
        sums = np.empty(PIECE, np.float32)
        for i in range(begin, end):
            sums[i - begin] = load(first, i)
        for rank in range(1, arguments[RANKS]):
            part = _slot(arguments, rank, kind)
            for i in range(begin, end):
                sums[i - begin] += load(part, i)
        for i in range(begin, end):
            store(target, i, sums[i - begin])


@ParallelKernel
def join_parts(arguments):
    """Arguments: the counter of copied pieces, then those above."""
    _write(arguments)
    rows, ranks = arguments[ROWS], arguments[RANKS]
    widths = pointer(arguments[WIDTHS], np.int64(0))
    pieces = rows * ranks
    while True:
        piece = _take(arguments, pieces)
        if piece >= pieces:
            break
        row, rank, before = piece // ranks, piece % ranks, np.int64(0)
        for other in range(rank):
            before += widths[other]
        source = shift(_slot(arguments, rank, np.uint8(0)), row * widths[rank])
        target = shift(pointer(arguments[TARGET], np.uint8(0)), row * arguments[WIDTH] + before)
        for i in range(widths[rank]):
            target[i] = source[i]


SUMS = {dtype: ParallelKernel(_sum_parts, kind, np.int64(dtype.itemsize)) for dtype, kind in KIND.items()}
