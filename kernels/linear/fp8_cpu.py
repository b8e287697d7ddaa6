"""The product of activations with FP8 weights, in one parallel region, and copies of rows of the weights.

A thread takes a strip of 64 outputs at a time, and multiplies a block of it with all rows before the next
one. The first rows widen the block into a buffer, which stays in the first-level cache for the others.
"""

import numpy as np
import torch

from ..common import bfloat16_dots
from ..common.jit import compiled
from ..common.numba_tools import KIND, fetch_add, pointer, shift, store
from ..common.rows import number_at
from ..common.teams import find_own_team, take_piece
from ..common.threads import ParallelKernel
from .fp8_tile import OUTPUTS, PAIR_BYTES, tiles
from .half_cpu import count_panels
from .half_tile import MAX_ROWS
from .integer_tiles import store_row

BLOCK = 64
"""Pairs of inputs whose products are added before they are scaled, at most: 8 KB of codes, 16 KB of bfloat16
or 32 KB of float32."""

NEAR, FAR = 1024, 8192
"""Bytes between the codes that are widened and those that are prefetched: NEAR for up to 3 rows, FAR for
more. One row takes 1.07 times as long with FAR as with NEAR, 5 rows take 1.09 times as long with NEAR as with
FAR."""

PANEL = 252
"""Rows that a thread takes at a time, at most. Their sums stay in the second-level cache."""

ARGUMENTS = 11
"""Arguments of a product. Those of the teams follow (see `teams`)."""

VALUES = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
"""the values of the codes, float32 [256]"""

_multiply_few = tiles(range(1, MAX_ROWS + 1), reads=False, writes=False)
_multiply_first, _multiply_next = (
    tiles(range(MAX_ROWS // 2, MAX_ROWS + 1), reads, not reads) for reads in (False, True)
)


@compiled
def _add_few(x, stride, codes, scales, sums, rows, count, buffer):
    """Add the products of `count` pairs and at most MAX_ROWS rows."""
    later = shift(codes, NEAR if rows <= 3 else FAR)
    _multiply_few(rows, count, x, stride, codes, buffer, scales, sums, later, PAIR_BYTES)


@compiled
def _add_many(x, stride, codes, scales, sums, rows, count, buffer):
    """Add the products of `count` pairs and more rows than MAX_ROWS, in tiles of nearly equal numbers of
    rows, of which the first one fills the buffer.

    Two tiles prefetch half of the next codes each, or four a quarter each; the others repeat that, which
    costs little.
    """
    parts = (rows + MAX_ROWS - 1) // MAX_ROWS
    shares = 4 if parts >= 4 else 2
    step = PAIR_BYTES // shares
    later = shift(codes, count * PAIR_BYTES)
    _multiply_first(rows // parts, count, x, stride, codes, buffer, scales, sums, later, step)
    for index in range(1, parts):
        row = rows * index // parts
        size = rows * (index + 1) // parts - row
        here, to = shift(x, row * stride), shift(sums, row * OUTPUTS)
        then = shift(later, index % shares * count * step)
        _multiply_next(size, count, here, stride, codes, buffer, scales, to, then, step)


@compiled
def multiply_strip(arguments, strip, first, count, sums, buffer, pair):
    """sums[r, o] = the products of `count` rows from `first` on with a strip."""
    pairs, group = arguments[3], arguments[4]
    groups = (pairs + group - 1) // group
    for i in range(count * OUTPUTS):
        sums[i] = np.float32(0)
    codes = shift(pointer(arguments[6], np.int8(0)), strip * pairs * PAIR_BYTES)
    scales = shift(pointer(arguments[7], np.float32(0)), strip * groups * OUTPUTS)
    x = shift(pointer(arguments[5], pair), first * pairs)
    begin = 0
    while begin < pairs:
        number = begin // group
        end = min(begin + BLOCK, (number + 1) * group, pairs)
        here, block = shift(x, begin), shift(codes, begin * PAIR_BYTES)
        factors = shift(scales, number * OUTPUTS)
        if count <= MAX_ROWS:
            _add_few(here, pairs, block, factors, sums, count, end - begin, buffer)
        else:
            _add_many(here, pairs, block, factors, sums, count, end - begin, buffer)
        begin = end


@compiled
def _multiply(arguments, memory, pair, kind):
    """Arguments: the counter of panels of strips; rows, outputs, pairs of inputs, pairs of a group; the
    addresses of x, the codes, the scales, the bias or 0, and y; the number of threads; those of the teams.
    pair, kind: see `fp8_tile.tiles` for the type of pairs of x, and `numba_tools.KIND` for that of y's
    elements.

    memory: the thread's sums and buffer. The caller holds it: numba frees an array after the last use of its
    name.
    """
    rows, outputs = arguments[1], arguments[2]
    sums = pointer(np.int64(memory.ctypes.data), np.float32(0))
    buffer = shift(sums, OUTPUTS * min(rows, PANEL))
    strips = (outputs + OUTPUTS - 1) // OUTPUTS
    panels = count_panels(rows, strips, arguments[10], PANEL)
    team = find_own_team(arguments, ARGUMENTS)
    while True:
        work = take_piece(arguments, ARGUMENTS, team, strips * panels)
        if work >= strips * panels:
            break
        strip, panel = work // panels, work % panels
        first = rows * panel // panels
        count = rows * (panel + 1) // panels - first
        multiply_strip(arguments, strip, first, count, sums, buffer, pair)
        store_rows(arguments, sums, first, count, strip * OUTPUTS, kind)


@compiled
def store_rows(arguments, sums, first, count, output, kind):
    """Write the sums of a panel's rows and a strip's outputs, plus the bias."""
    outputs = arguments[2]
    bias = pointer(arguments[8], np.float32(0))
    some = min(OUTPUTS, outputs - output)
    for row in range(count):
        y = shift(pointer(arguments[9], kind), (first + row) * outputs + output)
        of_row = shift(sums, row * OUTPUTS)
        for i in range(some):
            store(y, i, of_row[i] + bias[output + i] if arguments[8] != 0 else of_row[i])


@compiled
def _memory(arguments):
    """Sums of a panel, and a buffer for BLOCK pairs of float32."""
    return np.empty((min(arguments[1], PANEL) + 2 * BLOCK) * OUTPUTS, np.float32)


@compiled
def _multiply_alone(arguments, pair, kind):
    """As `_multiply`, with memory of its own."""
    _multiply(arguments, _memory(arguments), pair, kind)


_PAIRS = ParallelKernel(_multiply_alone, np.uint32(0), KIND[torch.bfloat16])
_FLOATS = {dtype: ParallelKernel(_multiply_alone, np.uint64(0), kind) for dtype, kind in KIND.items()}


def multiplies_pairs(dtype: torch.dtype) -> bool:
    """Whether x of this dtype is multiplied as pairs of bfloat16; otherwise as float32."""
    return dtype == torch.bfloat16 and bfloat16_dots.available()


def choose_kernel(dtype: torch.dtype) -> ParallelKernel:
    """The product for x and y of this dtype."""
    return _PAIRS if multiplies_pairs(dtype) else _FLOATS[dtype]


@ParallelKernel
def expand_rows(arguments):
    """Arguments: the counter of rows, then those of `Fp8CpuProduct.rows`: the rows, the numbers of their
    outputs and the bytes of a number; codes, places, `VALUES` and scales; inputs and inputs of a group; the
    results and their kind, of `integer_cpu.KINDS`."""
    while True:
        row = fetch_add(arguments, 1)
        if row >= arguments[1]:
            break
        weights = np.empty(arguments[8], np.float32)
        _expand(arguments, number_at(arguments[2], arguments[3], row), weights)
        store_row(weights, arguments[10], row, arguments[11])


@compiled
def _expand(arguments, output, weights):
    """Writes the weights of an output, float32 [inputs]."""
    inputs, group = arguments[8], arguments[9]
    pairs, groups = (inputs + 1) // 2, (inputs + group - 1) // group
    strip, lane = output // OUTPUTS, output % OUTPUTS
    codes = shift(pointer(arguments[4], np.uint8(0)), strip * pairs * 2 * OUTPUTS)
    place = pointer(arguments[5], np.int64(0))[lane]
    values = pointer(arguments[6], np.float32(0))
    scales = shift(pointer(arguments[7], np.float32(0)), strip * groups * OUTPUTS + lane)
    for i in range(inputs):
        code = codes[(i // 2 * OUTPUTS + place) * 2 + i % 2]
        weights[i] = values[code] * scales[i // group * OUTPUTS]
