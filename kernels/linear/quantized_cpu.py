# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,var-annotated,no-any-return"
"""The product of activations with a quantized weight, in one parallel region."""

from functools import cache

import numpy as np
import torch

from ..common.jit import compiled
from ..common.numba_tools import fetch_add, pointer, shifted, store
from ..common.threads import Callback
from .byte_dots import TILE, VECTOR, tile_products
from .quantized_rows import quantize_groups

ROWS = 8
"""Rows that are multiplied with a tile at a time, at most."""

DIRECT_ROWS = 16
"""Up to this many rows, 4-bit codes are unpacked in registers; for more, once into memory."""

PIECE = 1024
"""Inputs of a row that a thread quantizes at a time, approximately."""

BLOCK = 65_536
"""Bytes of the weight that a thread takes at a time, approximately."""

FLOAT32, BFLOAT16, FLOAT16 = range(3)
KINDS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}

_one, _two, _four, _eight = (tile_products(rows) for rows in (1, 2, 4, ROWS))


@compiled
def _multiply_rows(rows, groups, steps, codes, x, x_row, scales, sums, out):
    """Up to ROWS rows; tables may hold more rows than that are used."""
    if rows == 1:
        _one(groups, steps, codes, x, x_row, scales, sums, groups, out)
    elif rows == 2:
        _two(groups, steps, codes, x, x_row, scales, sums, groups, out)
    elif rows <= 4:
        _four(groups, steps, codes, x, x_row, scales, sums, groups, out)
    else:
        _eight(groups, steps, codes, x, x_row, scales, sums, groups, out)


@compiled
def _quantize(arguments, has_offsets):
    """Quantizes rows together with the other threads, and waits until all are quantized."""
    kind, rows, inputs, group, x = arguments[3], arguments[4], arguments[6], arguments[7], arguments[9]
    codes = pointer(arguments[10], np.int8(0))
    scales = pointer(arguments[11], np.float32(0))
    sums = pointer(arguments[12], np.float32(0))
    zero = np.int32(arguments[8])
    groups = inputs // group
    step = max(1, PIECE // group)
    parts = (groups + step - 1) // step
    done = shifted(arguments, 2)
    while True:
        piece = fetch_add(shifted(arguments, 1), 1)
        if piece >= rows * parts:
            break
        row, first = piece // parts, piece % parts * step
        count = min(step, groups - first)
        target = shifted(codes, row * inputs)
        tables = shifted(scales, row * groups), shifted(sums, row * groups)
        if kind == FLOAT32:
            source = shifted(pointer(x, np.float32(0)), row * inputs)
            quantize_groups(source, first, count, group, target, tables[0], tables[1], zero, has_offsets)
        elif kind == BFLOAT16:
            half = shifted(pointer(x, np.uint16(0)), row * inputs)
            quantize_groups(half, first, count, group, target, tables[0], tables[1], zero, has_offsets)
        else:
            other = shifted(pointer(x, np.int16(0)), row * inputs)
            quantize_groups(other, first, count, group, target, tables[0], tables[1], zero, has_offsets)
        fetch_add(done, 1)
    while fetch_add(done, 0) < rows * parts:
        pass


@compiled
def _unpack(source, target, groups, steps, has_offsets):
    """Copies a 4-bit tile as an 8-bit one."""
    head = VECTOR * (2 if has_offsets else 1)
    for _ in range(groups):
        for i in range(head):
            target[i] = source[i]
        source, target = shifted(source, head), shifted(target, head)
        for _ in range(steps):
            for i in range(VECTOR):
                target[i] = source[i] & np.int8(15)
                target[VECTOR + i] = (source[i] >> np.int8(4)) & np.int8(15)
            source, target = shifted(source, VECTOR), shifted(target, 2 * VECTOR)


@compiled
def _store(totals, factors, bias, biased, count, y):
    """Writes the results of one row and `count` outputs."""
    for i in range(count):
        value = totals[i] * factors[i]
        store(y, i, value + bias[i] if biased else value)


@compiled
def _store_rows(arguments, totals, rows, output):
    outputs = arguments[5]
    factors = shifted(pointer(arguments[14], np.float32(0)), output)
    biased = arguments[15] != 0
    bias = shifted(pointer(arguments[15], np.float32(0)), output)
    count = min(TILE, outputs - output)
    for row in range(rows):
        total, at = shifted(totals, row * TILE), row * outputs + output
        if arguments[3] == FLOAT32:
            _store(total, factors, bias, biased, count, shifted(pointer(arguments[16], np.float32(0)), at))
        elif arguments[3] == BFLOAT16:
            _store(total, factors, bias, biased, count, shifted(pointer(arguments[16], np.uint16(0)), at))
        else:
            _store(total, factors, bias, biased, count, shifted(pointer(arguments[16], np.int16(0)), at))


@compiled
def _multiply(arguments, bits, four_codes, has_offsets, sum_kind):
    """Arguments: the counters of blocks of tiles, of pieces to quantize and of quantized pieces; the kind of
    x and y, rows, outputs, inputs, group, zero; the addresses of x, its codes, scales and sums, the tiles,
    the outputs' factors, the bias or 0, and y."""
    _quantize(arguments, has_offsets)
    rows, outputs, inputs, group = arguments[4], arguments[5], arguments[6], arguments[7]
    x = pointer(arguments[10], np.int8(0))
    scales = pointer(arguments[11], np.float32(0))
    sums = pointer(arguments[12], sum_kind)
    groups, steps = inputs // group, group // 4
    head = VECTOR * (2 if has_offsets else 1)
    tile_bytes = groups * (head + steps * VECTOR * bits // 4)
    tiles = (outputs + TILE - 1) // TILE
    block = max(1, BLOCK // tile_bytes)
    unpacked = bits == 4 and rows > DIRECT_ROWS
    buffer = np.empty((groups * (head + steps * 2 * VECTOR) if unpacked else 0) + VECTOR, np.int8)
    scratch = (np.int64(buffer.ctypes.data) + VECTOR - 1) // VECTOR * VECTOR
    memory = np.empty((rows + ROWS - 1) // ROWS * ROWS * TILE + TILE, np.float32)
    totals = pointer((np.int64(memory.ctypes.data) + VECTOR - 1) // VECTOR * VECTOR, np.float32(0))
    while True:
        begin = fetch_add(arguments, 1) * block
        if begin >= tiles:
            break
        for tile in range(begin, min(tiles, begin + block)):
            address = arguments[13] + tile * tile_bytes
            for i in range(rows * TILE):
                totals[i] = np.float32(0)
            if unpacked:
                _unpack(
                    pointer(address, np.int8(0)), pointer(scratch, np.int8(0)), groups, steps, has_offsets
                )
            for row in range(0, rows, ROWS):
                some = min(ROWS, rows - row)
                row_x, at = shifted(x, row * inputs), row * groups
                row_scales, row_sums = shifted(scales, at), shifted(sums, at)
                out = shifted(totals, row * TILE)
                if unpacked:
                    codes = pointer(scratch, np.uint32(0))
                    _multiply_rows(some, groups, steps, codes, row_x, inputs, row_scales, row_sums, out)
                else:
                    stored = pointer(address, four_codes)
                    _multiply_rows(some, groups, steps, stored, row_x, inputs, row_scales, row_sums, out)
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
