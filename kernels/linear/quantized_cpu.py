# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,var-annotated,no-any-return"
"""The product of activations with a quantized weight, in one parallel region."""

from functools import cache

import numpy as np
import torch

from ..common.amx import release_tiles
from ..common.jit import compiled
from ..common.numba_tools import fetch_add, pointer, prefetch, shifted, yield_core
from ..common.threads import Callback
from .amx_product import BLOCK_ROWS
from .byte_dots import TILE, VECTOR, tile_products, write_results
from .quantized_panels import (
    PANEL,
    PANEL_BYTES,
    block_offset,
    multiply_panel,
    start_panels,
)
from .quantized_rows import quantize_groups

ROWS = 6
"""Rows that are multiplied with a tile at a time, at most."""

FEW_ROWS = 16
"""Up to this many rows, a product is limited by reading the weight."""

MEMORY_BYTES = max(4 * TILE * (FEW_ROWS + ROWS), PANEL_BYTES)
"""Scratch memory of each thread. It holds either the results of FEW_ROWS rows, rounded up to whole passes,
and a copy of one row's, or what `quantized_panels` needs for a panel."""

ROWS_BEYOND = BLOCK_ROWS
"""The kernels read the codes of up to this many rows after the last one, and ignore those rows' products."""

PIECE = 1024
"""Inputs of a row that a thread quantizes at a time, approximately."""

BLOCK = 65_536
"""Bytes of the weight that a thread takes at a time, approximately."""

AHEAD = 4096
"""Bytes between multiplying and prefetching."""

SPINS = 1000
"""How often a thread reads the counter of quantized pieces before it offers its core to others."""

FLOAT32, BFLOAT16, FLOAT16 = range(3)
KINDS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}

_one, _two, _three, _four, _five, _six = (tile_products(rows) for rows in range(1, ROWS + 1))


@compiled
def _multiply_rows(rows, passes, groups, parts, steps, codes, x, row, scales, table, sums, wide, out, ahead):
    """See `byte_dots.tile_products`; `rows` of each pass, up to ROWS."""
    if rows == 1:
        _one(passes, groups, parts, steps, codes, x, row, scales, table, sums, wide, out, ahead)
    elif rows == 2:
        _two(passes, groups, parts, steps, codes, x, row, scales, table, sums, wide, out, ahead)
    elif rows == 3:
        _three(passes, groups, parts, steps, codes, x, row, scales, table, sums, wide, out, ahead)
    elif rows == 4:
        _four(passes, groups, parts, steps, codes, x, row, scales, table, sums, wide, out, ahead)
    elif rows == 5:
        _five(passes, groups, parts, steps, codes, x, row, scales, table, sums, wide, out, ahead)
    else:
        _six(passes, groups, parts, steps, codes, x, row, scales, table, sums, wide, out, ahead)


@compiled
def _size_of_passes(rows):
    """The rows of a pass, from 4 to ROWS, so that the passes exceed `rows` least; of equals, the largest."""
    best = ROWS
    for size in range(ROWS - 1, 3, -1):
        if (rows + size - 1) // size * size < (rows + best - 1) // best * best:
            best = size
    return best


@compiled
def _quantize(arguments, has_offsets):
    """Quantizes rows together with the other threads, and waits until all are quantized."""
    rows, inputs, group, parts, x = arguments[4], arguments[6], arguments[7], arguments[8], arguments[10]
    zero = np.int32(arguments[9])
    codes = pointer(arguments[11], np.int8(0))
    scales = pointer(arguments[12], np.float32(0))
    sums = pointer(arguments[13], np.float32(0))
    groups = inputs // (group * parts)
    step = max(1, PIECE // (group * parts))
    pieces = (groups + step - 1) // step
    done = shifted(arguments, 2)
    while True:
        piece = fetch_add(shifted(arguments, 1), 1)
        if piece >= rows * pieces:
            break
        row, first = piece // pieces, piece % pieces * step
        count = min(step, groups - first)
        start = row * groups + first
        at = start * parts * group
        of_codes, step_codes = shifted(codes, at), parts * group
        if arguments[20] != 0:
            of_codes = shifted(codes, block_offset(row, first, groups, parts * group))
            step_codes *= BLOCK_ROWS
        out = of_codes, step_codes, shifted(scales, start), shifted(sums, start * parts)
        if arguments[3] == FLOAT32:
            wide = shifted(pointer(x, np.float32(0)), at)
            quantize_groups(wide, count, parts, group, *out, zero, has_offsets)
        elif arguments[3] == BFLOAT16:
            brain = shifted(pointer(x, np.uint16(0)), at)
            quantize_groups(brain, count, parts, group, *out, zero, has_offsets)
        else:
            half = shifted(pointer(x, np.int16(0)), at)
            quantize_groups(half, count, parts, group, *out, zero, has_offsets)
        fetch_add(done, 1)
    turns = 0
    while fetch_add(done, 0) < rows * pieces:
        turns += 1
        if turns > SPINS:
            yield_core()


@compiled
def _prefetch_results(arguments, first, rows, output):
    """Prefetches where the results of some rows and one tile will be written: a line or two of each row."""
    size = 4 if arguments[3] == FLOAT32 else 2
    y = pointer(arguments[17], np.uint8(0))
    for row in range(first, first + rows):
        at = (row * arguments[5] + output) * size
        for start in range(0, TILE * size, VECTOR):
            prefetch(y, at + start)


@compiled
def _store_rows(arguments, totals, first, rows, output):
    """Writes the results of some rows and one tile, whose first output is `output`."""
    y = arguments[17]
    if arguments[3] == FLOAT32:
        _store(arguments, totals, first, rows, output, y, np.float32(0))
    elif arguments[3] == BFLOAT16:
        _store(arguments, totals, first, rows, output, y, np.uint16(0))
    else:
        _store(arguments, totals, first, rows, output, y, np.int16(0))


@compiled
def _store(arguments, totals, first, rows, output, y, kind):
    outputs = arguments[5]
    count = min(TILE, outputs - output)
    factors = shifted(pointer(arguments[15], np.float32(0)), output)
    bias = shifted(pointer(arguments[16], np.float32(0)), output)
    whole = pointer(totals + 4 * rows * TILE, kind)
    for row in range(rows):
        total = pointer(totals + 4 * row * TILE, np.float32(0))
        target = shifted(pointer(y, kind), (first + row) * outputs + output)
        if count == TILE:
            write_results(total, factors, bias, arguments[16] != 0, target)
        else:
            write_results(total, factors, bias, arguments[16] != 0, whole)
            for i in range(count):
                target[i] = whole[i]


@compiled
def _multiply_tile(arguments, address, group_bytes, four_codes, sum_kind, totals, output):
    """Multiplies all rows with one tile, whose first output is `output`.

    Up to FEW_ROWS rows are multiplied with a part of the weight before the next part, so that it is read
    evenly. More rows are multiplied with the whole tile, up to ROWS at a time.
    """
    rows, inputs, group, parts = arguments[4], arguments[6], arguments[7], arguments[8]
    groups, steps = inputs // (group * parts), group // 4
    codes = pointer(address, four_codes)
    out = pointer(totals, np.float32(0))
    turns = 1 if rows <= FEW_ROWS else (rows + ROWS - 1) // ROWS
    for number in range(turns):
        row = rows * number // turns
        some = rows * (number + 1) // turns - row
        size = max(1, some) if some <= ROWS else _size_of_passes(some)
        passes = (some + size - 1) // size
        for i in range(passes * size * TILE):
            out[i] = np.float32(0)
        x = shifted(pointer(arguments[11], np.int8(0)), row * inputs)
        scales = shifted(pointer(arguments[12], np.float32(0)), row * groups)
        sums = shifted(pointer(arguments[13], sum_kind), row * groups * parts)
        ahead = AHEAD if number == 0 else 0
        if rows > FEW_ROWS:
            _prefetch_results(arguments, row, some, output)
        wide = groups * parts
        _multiply_rows(
            size, passes, groups, parts, steps, codes, x, inputs, scales, groups, sums, wide, out, ahead
        )
        _store_rows(arguments, totals, row, some, output)


@compiled
def _multiply_panels(arguments, address, bits, has_offsets, sum_kind, memory, output):
    """Multiplies all rows with one tile by AMX. The results are those of `_multiply_tile`."""
    rows = arguments[4]
    for row in range(0, rows, PANEL):
        count = min(PANEL, rows - row)
        _prefetch_results(arguments, row, count, output)
        multiply_panel(arguments, address, bits, has_offsets, sum_kind, memory, row, count)
        _store_rows(arguments, memory, row, count, output)


@compiled
def _multiply(arguments, bits, four_codes, has_offsets, sum_kind):
    """Arguments: the counters of blocks of tiles, of pieces to quantize and of quantized pieces; the kind of
    x and y, rows, outputs, inputs, group of weights, such groups that share a scale of activations, zero; the
    addresses of x, its codes, scales and sums, the tiles, the outputs' factors, the bias or 0, y, and
    MEMORY_BYTES for each thread; the counter of threads; whether AMX multiplies."""
    _quantize(arguments, has_offsets)
    outputs, inputs, group = arguments[5], arguments[6], arguments[7]
    groups, steps = inputs // group, group // 4
    group_bytes = VECTOR * (2 if has_offsets else 1) + steps * VECTOR * bits // 4
    tiles, tile_bytes = (outputs + TILE - 1) // TILE, groups * group_bytes
    block = max(1, BLOCK // tile_bytes)
    memory = arguments[18] + fetch_add(shifted(arguments, 19), 1) * MEMORY_BYTES
    if arguments[20] != 0:
        start_panels(memory, group)
    while True:
        begin = fetch_add(arguments, 1) * block
        if begin >= tiles:
            break
        for tile in range(begin, min(tiles, begin + block)):
            address = arguments[14] + tile * tile_bytes
            if arguments[20] != 0:
                _multiply_panels(arguments, address, bits, has_offsets, sum_kind, memory, tile * TILE)
            else:
                _multiply_tile(arguments, address, group_bytes, four_codes, sum_kind, memory, tile * TILE)
    if arguments[20] != 0:
        release_tiles()


def _product_4(arguments):
    _multiply(arguments, 4, np.uint16(0), False, np.int32(0))


def _product_8(arguments):
    _multiply(arguments, 8, np.uint32(0), False, np.int32(0))


def _product_4_offsets(arguments):
    _multiply(arguments, 4, np.uint16(0), True, np.float32(0))


def _product_8_offsets(arguments):
    _multiply(arguments, 8, np.uint32(0), True, np.float32(0))


_PRODUCTS = {
    (4, False): _product_4,
    (8, False): _product_8,
    (4, True): _product_4_offsets,
    (8, True): _product_8_offsets,
}


@cache
def products(bits: int, offsets: bool) -> Callback:
    return Callback(_PRODUCTS[bits, offsets])
