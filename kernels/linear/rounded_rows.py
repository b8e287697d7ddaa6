"""Activations as products of quantized weights and AMX read them.

Bytes: each group of a row has a scale, its largest magnitude / 127, and codes are rounded to the nearest,
ties to even. Groups whose magnitudes are all below 2 ** -100 count as 0. NaN or infinity makes the
scale of its group NaN.

Blocks of bfloat16, in the order in which AMX reads them: BLOCK_ROWS rows are a block, which holds STEP inputs
of each of them, then the next STEP. So what one instruction loads lies together.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from ..common import amx
from ..common.amx import DEPTH, SIDE
from ..common.bfloat16_dots import round_words
from ..common.emits import ANY, FLOAT, INT, TO_WORDS, VOID, emits
from ..common.jit import compiled
from ..common.llvm import I8, read, size, write
from ..common.numba_tools import fetch_add, float_with_bits, pause, read_counter, shift, yield_core
from ..common.vectors import FLOATS, LANES, WORDS, floats, read_floats, reduce_lanes, splat, words

_INFINITY = np.int32(0x7F800000)
_SMALL = np.int32((127 - 100) << 23)
"""the bits of 2 ** -100"""
_ROUNDING = float(3 << 22)
"""A float32 whose last bit counts 1: adding it rounds to an integer."""
_ROUNDING_BITS = 0x4B400000

BLOCK_ROWS = SIDE
STEP = 2 * DEPTH
STEP_WORDS = BLOCK_ROWS * DEPTH
"""Words of a block from STEP inputs to the next; a word holds two values."""

SPINS = 1000
"""A waiting thread reads the counter this many times before it yields its core to other threads."""


@emits(types.int32, ANY, INT)
def _largest(builder, x, vectors, kinds):
    """The bits of the largest magnitude of 16 × vectors values, as int32: NaN exceeds infinity."""
    largest = cgutils.alloca_once_value(builder, ir.Constant(WORDS, None))
    with cgutils.for_range(builder, vectors) as loop:
        bits = builder.bitcast(_values(builder, x, loop.index, kinds[0].dtype), WORDS)
        magnitudes = builder.and_(bits, words(0x7FFFFFFF))
        before = builder.load(largest)
        above = builder.icmp_signed(">", magnitudes, before)
        builder.store(builder.select(above, magnitudes, before), largest)
    return reduce_lanes(builder, "smax", builder.load(largest))


@emits(types.int32, ANY, INT, FLOAT, ANY)
def _write_codes(builder, x, vectors, inverse, codes, kinds):
    """Writes 16 × vectors values times `inverse`, rounded; returns their sum."""
    factor, rounding = splat(builder, inverse, FLOATS), floats(_ROUNDING)
    total = cgutils.alloca_once_value(builder, ir.Constant(WORDS, None))
    with cgutils.for_range(builder, vectors) as loop:
        values = builder.fmul(_values(builder, x, loop.index, kinds[0].dtype), factor)
        bits = builder.bitcast(builder.fadd(values, rounding), WORDS)
        rounded = builder.sub(bits, words(_ROUNDING_BITS))
        builder.store(builder.add(builder.load(total), rounded), total)
        place = builder.gep(codes, [builder.mul(loop.index, size(LANES))])
        write(builder, builder.trunc(rounded, ir.VectorType(I8, LANES)), place)
    return reduce_lanes(builder, "add", builder.load(total))


def _values(builder: ir.IRBuilder, start: ir.Value, vector: ir.Value, stored: types.Type) -> ir.Value:
    return read_floats(builder, builder.gep(start, [builder.mul(vector, size(LANES))]), stored)


@compiled
def quantize_groups(x, count, parts, group, codes, codes_step, scales, sums, zero, has_offsets):
    """Quantize `count` × `parts` groups; `parts` groups share a scale.

    The codes of successive scales begin `codes_step` bytes apart.
    See `tile_products.add_products` for scales and sums; sums of int32 are stored by their bits.
    """
    for index in range(count):
        source = shift(x, index * parts * group)
        largest = _largest(source, parts * group // LANES)
        scale = inverse = np.float32(0)
        if largest >= _INFINITY:
            scale = np.float32(np.nan)
        elif largest >= _SMALL:
            magnitude = float_with_bits(largest)
            scale, inverse = magnitude / np.float32(127), np.float32(127) / magnitude
        scales[index] = scale
        for part in range(parts):
            wide = shift(source, part * group)
            target = shift(codes, index * codes_step + part * group)
            total = _write_codes(wide, group // LANES, inverse, target)
            if has_offsets:
                sums[index * parts + part] = np.float32(total)
            else:
                sums[index * parts + part] = float_with_bits(np.int32(-zero * total))


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
    while read_counter(counter) < number:
        turns += 1
        pause()
        if turns > SPINS:
            yield_core()


@emits(VOID, ANY, INT, TO_WORDS)
def _write_row(builder, x, steps, target, kinds):
    """Writes `steps` × STEP values, STEP_WORDS words apart."""
    if not amx.is_compiled():
        return
    stored = kinds[0].dtype
    with cgutils.for_range(builder, steps) as loop:
        start = builder.gep(x, [builder.mul(loop.index, size(STEP))])
        if stored == types.uint16:
            values = read(builder, start, WORDS)
        else:
            places = [builder.gep(start, [size(first)]) for first in (0, LANES)]
            values = round_words(builder, *(read_floats(builder, place, stored) for place in places))
        write(builder, values, builder.gep(target, [builder.mul(loop.index, size(STEP_WORDS))]))
