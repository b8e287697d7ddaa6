# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,var-annotated,no-any-return"
"""The product of activations with a quantized weight, in one parallel region."""

from functools import cache

import numpy as np
import torch

from ..common.jit import compiled
from ..common.numba_tools import fetch_add, pointer, shifted
from ..common.threads import Callback
from .byte_dots import TILE, VECTOR, tile_products, write_results
from .quantized_rows import quantize_groups

ROWS = 6
"""Rows that are multiplied with a tile at a time, at most."""

FEW_ROWS = 16
"""Up to this many rows, a product is limited by reading the weight."""

PIECE = 1024
"""Inputs of a row that a thread quantizes at a time, approximately."""

BLOCK = 65_536
"""Bytes of the weight that a thread takes at a time, approximately."""

AHEAD = 4096
"""Bytes between multiplying and prefetching, for few rows."""

FLOAT32, BFLOAT16, FLOAT16 = range(3)
KINDS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}

_one, _two, _four, _six = (tile_products(rows) for rows in (1, 2, 4, ROWS))


@compiled
def _multiply_rows(rows, groups, parts, steps, codes, x, scales, sums, row, out, ahead, step):
    """Up to ROWS rows; the tables may hold more rows than are used. row: inputs of a row of x"""
    table = row // (4 * steps * parts)
    wide = table * parts
    if rows == 1:
        _one(groups, parts, steps, codes, x, row, scales, table, sums, wide, out, ahead, step)
    elif rows == 2:
        _two(groups, parts, steps, codes, x, row, scales, table, sums, wide, out, ahead, step)
    elif rows <= 4:
        _four(groups, parts, steps, codes, x, row, scales, table, sums, wide, out, ahead, step)
    else:
        _six(groups, parts, steps, codes, x, row, scales, table, sums, wide, out, ahead, step)


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
        out = shifted(codes, at), shifted(scales, start), shifted(sums, start * parts)
        if arguments[3] == FLOAT32:
            wide = shifted(pointer(x, np.float32(0)), at)
            quantize_groups(wide, count, parts, group, out[0], out[1], out[2], zero, has_offsets)
        elif arguments[3] == BFLOAT16:
            brain = shifted(pointer(x, np.uint16(0)), at)
            quantize_groups(brain, count, parts, group, out[0], out[1], out[2], zero, has_offsets)
        else:
            half = shifted(pointer(x, np.int16(0)), at)
            quantize_groups(half, count, parts, group, out[0], out[1], out[2], zero, has_offsets)
        fetch_add(done, 1)
    while fetch_add(done, 0) < rows * pieces:
        pass


@compiled
def _store_rows(arguments, totals, rows, output):
    """Writes the results of one tile, whose first output is `output`. Overwrites 32 totals after `rows`."""
    y = arguments[17]
    if arguments[3] == FLOAT32:
        _store(arguments, totals, rows, output, y, np.float32(0))
    elif arguments[3] == BFLOAT16:
        _store(arguments, totals, rows, output, y, np.uint16(0))
    else:
        _store(arguments, totals, rows, output, y, np.int16(0))


@compiled
def _store(arguments, totals, rows, output, y, kind):
    outputs = arguments[5]
    count = min(TILE, outputs - output)
    factors = shifted(pointer(arguments[15], np.float32(0)), output)
    bias = shifted(pointer(arguments[16], np.float32(0)), output)
    whole = pointer(totals + 4 * rows * TILE, kind)
    for row in range(rows):
        total = pointer(totals + 4 * row * TILE, np.float32(0))
        target = shifted(pointer(y, kind), row * outputs + output)
        if count == TILE:
            write_results(total, factors, bias, arguments[16] != 0, target)
        else:
            write_results(total, factors, bias, arguments[16] != 0, whole)
            for i in range(count):
                target[i] = whole[i]


@compiled
def totals_bytes(rows):
    """Memory that a thread needs for the results of a tile, and of rows that are multiplied for nothing."""
    return 4 * TILE * (rows + ROWS)


@compiled
def _multiply_tile(arguments, address, group_bytes, ahead, four_codes, sum_kind, totals):
    """Multiplies all rows with one tile; `group_bytes` is the size of its groups.

    For few rows a span of inputs is multiplied with all of them before the next span, so that the weight is
    read evenly.
    """
    rows, inputs, group, parts = arguments[4], arguments[6], arguments[7], arguments[8]
    groups, steps = inputs // (group * parts), group // 4
    passes = (rows + ROWS - 1) // ROWS
    span = 1 if passes > 1 and rows <= FEW_ROWS else groups
    ahead_step = (group_bytes + steps - 1) // (steps * passes)
    for first in range(0, groups, span):
        codes = pointer(address + first * parts * group_bytes, four_codes)
        for number in range(passes):
            row = number * ROWS
            x = shifted(pointer(arguments[11], np.int8(0)), row * inputs + first * parts * group)
            scales = shifted(pointer(arguments[12], np.float32(0)), row * groups + first)
            sums = shifted(pointer(arguments[13], sum_kind), (row * groups + first) * parts)
            out = pointer(totals + 4 * row * TILE, np.float32(0))
            place = ahead + first * parts * group_bytes + number * ahead_step * span * parts * steps
            line = pointer(place, np.int8(0))
            some = min(ROWS, rows - row)
            _multiply_rows(some, span, parts, steps, codes, x, scales, sums, inputs, out, line, ahead_step)


@compiled
def _multiply(arguments, bits, four_codes, has_offsets, sum_kind):
    """Arguments: the counters of blocks of tiles, of pieces to quantize and of quantized pieces; the kind of
    x and y, rows, outputs, inputs, group of weights, such groups that share a scale of activations, zero; the
    addresses of x, its codes, scales and sums, the tiles, the outputs' factors, the bias or 0, y, and
    `totals_bytes` for each thread; the counter of threads."""
    _quantize(arguments, has_offsets)
    rows, outputs, inputs, group = arguments[4], arguments[5], arguments[6], arguments[7]
    groups, steps = inputs // group, group // 4
    group_bytes = VECTOR * (2 if has_offsets else 1) + steps * VECTOR * bits // 4
    tiles, tile_bytes = (outputs + TILE - 1) // TILE, groups * group_bytes
    block = max(1, BLOCK // tile_bytes)
    totals = arguments[18] + fetch_add(shifted(arguments, 19), 1) * totals_bytes(rows)
    while True:
        begin = fetch_add(arguments, 1) * block
        if begin >= tiles:
            break
        for tile in range(begin, min(tiles, begin + block)):
            sums = pointer(totals, np.float32(0))
            for i in range(rows * TILE):
                sums[i] = np.float32(0)
            address = arguments[14] + tile * tile_bytes
            ahead = address + (AHEAD if rows <= FEW_ROWS else tile_bytes)
            _multiply_tile(arguments, address, group_bytes, ahead, four_codes, sum_kind, totals)
            _store_rows(arguments, totals, rows, tile * TILE)


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
