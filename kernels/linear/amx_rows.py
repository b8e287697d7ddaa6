"""Activations in the order in which AMX reads them.

BLOCK_ROWS rows are a block, which holds STEP inputs of each of them, then the next STEP. So what one
instruction loads lies together.
"""

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..common import amx
from ..common.amx_product import DEPTH, SIDE
from ..common.bfloat16_dots import round_words
from ..common.jit import compiled
from ..common.llvm import read, size, write
from ..common.numba_tools import fetch_add, shift, yield_core
from ..common.vectors import LANES, WORDS, read_floats

BLOCK_ROWS = SIDE
STEP = 2 * DEPTH
STEP_WORDS = BLOCK_ROWS * DEPTH
"""Words of a block from STEP inputs to the next; a word holds two values."""

SPINS = 1000
"""A waiting thread reads the counter this many times before it yields its core to other threads."""


def block_bytes(rows: int, inputs: int) -> int:
    """The size of the blocks for this many rows, in bytes."""
    return -(-rows // BLOCK_ROWS) * BLOCK_ROWS * inputs * 2


@compiled
def pack_rows(x, rows, inputs, blocks, taken, done):
    """Rounds the rows to bfloat16 and writes them as blocks, together with the other threads. Returns when
    all rows are written; rows that the last block lacks are left as they are.

    x: [rows, inputs], a multiple of STEP inputs; blocks: words; taken, done: the threads' counters, 0 at
    first
    """
    while True:
        row = fetch_add(taken, 1)
        if row >= rows:
            break
        place = row // BLOCK_ROWS * (inputs // STEP) * STEP_WORDS + row % BLOCK_ROWS * DEPTH
        _write_row(shift(x, row * inputs), inputs // STEP, shift(blocks, place))
        fetch_add(done, 1)
    wait_until(done, rows)


@compiled
def wait_until(counter, number):
    """Waits until the counter, which other threads increase, has reached the number."""
    turns = 0
    while fetch_add(counter, 0) < number:
        turns += 1
        if turns > SPINS:
            yield_core()


@intrinsic
def _write_row(typing, x, steps, target):
    """Writes `steps` × STEP values, STEP_WORDS words apart."""

    def generate(context, builder, signature, arguments):
        x_start, steps, target = arguments
        if not amx.is_compiled():
            return context.get_dummy_value()
        with cgutils.for_range(builder, steps) as loop:
            start = builder.gep(x_start, [builder.mul(loop.index, size(STEP))])
            if x.dtype == types.uint16:
                values = read(builder, start, WORDS)
            else:
                halves = [
                    read_floats(builder, builder.gep(start, [size(first)]), x.dtype) for first in (0, LANES)
                ]
                values = round_words(builder, *halves)
            write(builder, values, builder.gep(target, [builder.mul(loop.index, size(STEP_WORDS))]))
        return context.get_dummy_value()

    return types.void(x, types.int64, types.CPointer(types.uint32)), generate
