"""Conversion of quantized weights to tiles (see `byte_dots`) and back, and to bfloat16 for AMX."""

import numpy as np
from llvmlite import ir
from numba.core import cgutils

from ..common import amx
from ..common.bfloat16_dots import round_pairs
from ..common.emits import ANY, FLOAT, INT, TO_WORDS, VOID, emits
from ..common.jit import compiled
from ..common.llvm import F32, I8, size, write
from ..common.numba_tools import fetch_add, load, pointer, shift, store
from ..common.rows import number_at
from ..common.threads import ParallelKernel
from ..common.vectors import FLOATS, LANES, fma, splat, words
from .byte_dots import TILE, VECTOR, read_codes, read_halves

_HALF = TILE // 2
_VECTOR_WORDS = VECTOR // 4


@compiled
def pack_codes(tiles, begin, codes, group, head_words, bits):
    """Write codes of outputs from `begin` on into tiles, where they are 0.

    tiles: uint32 [tiles, groups, words of a group]; codes: uint32 [n, inputs / 4], a byte for each code
    """
    groups, steps = tiles.shape[1], group // 4
    for row in range(len(codes)):
        output = begin + row
        half, lane = output % TILE // _HALF, output % _HALF
        for index in range(groups):
            target, source = tiles[output // TILE, index], codes[row, index * steps : (index + 1) * steps]
            if bits == 8:
                for step in range(steps):
                    target[head_words + (2 * step + half) * _VECTOR_WORDS + lane] = source[step]
            else:
                for step in range(steps):
                    target[head_words + step * _VECTOR_WORDS + lane] |= source[step] << np.uint32(4 * half)


@ParallelKernel
def expand_rows(arguments):
    """Arguments: the counter of rows, then those of `IntegerCpuProduct.rows`: the rows, the numbers of their
    outputs and the bytes of a number; tiles, factors and the order of inputs (0: as stored); inputs, inputs
    of a group, zero, whether there are offsets, bits; the results and their kind, of `integer_cpu.KINDS`.
    """
    inputs = arguments[7]
    while True:
        row = fetch_add(arguments, 1)
        if row >= arguments[1]:
            break
        weights = np.empty(inputs, np.float32)
        _expand(arguments, number_at(arguments[2], arguments[3], row), weights)
        store_row(weights, arguments[12], row, arguments[13])


@compiled
def _expand(arguments, output, weights):
    """Writes the weights of an output, float32 [inputs]."""
    inputs, group, zero = arguments[7], arguments[8], arguments[9]
    has_offsets, bits = arguments[10] != 0, arguments[11]
    head = VECTOR * (2 if has_offsets else 1)
    groups, group_bytes = inputs // group, head + TILE * group * bits // 8
    tile = shift(pointer(arguments[4], np.uint8(0)), output // TILE * groups * group_bytes)
    order = pointer(arguments[6], np.int64(0))
    factor = pointer(arguments[5], np.float32(0))[output]
    half, lane = output % TILE // _HALF, output % _HALF
    for index in range(groups):
        source = shift(tile, index * group_bytes)
        tables = pointer(arguments[4] + (output // TILE * groups + index) * group_bytes, np.int16(0))
        scale = load(tables, output % TILE) * factor
        offset = load(tables, TILE + output % TILE) * factor if has_offsets else np.float32(0)
        for place in range(group):
            step, byte = place // 4, place % 4
            if bits == 8:
                code = np.int32(source[head + (2 * step + half) * VECTOR + 4 * lane + byte])
            else:
                code = np.int32(source[head + step * VECTOR + 4 * lane + byte]) >> (4 * half) & 15
            column = index * group + place
            if arguments[6] != 0:
                column = order[column]
            weights[column] = np.float32(code - zero) * scale + offset


@compiled
def store_row(values, address, row, kind):
    """Writes a row of a matrix at this address. kind: of its elements, by `integer_cpu.KINDS`."""
    first = row * len(values)
    if kind == 0:
        _store(values, shift(pointer(address, np.float32(0)), first))
    elif kind == 1:
        _store(values, shift(pointer(address, np.uint16(0)), first))
    else:
        _store(values, shift(pointer(address, np.int16(0)), first))


@compiled
def _store(values, target):
    for i in range(len(values)):
        store(target, i, values[i])


@emits(VOID, INT, INT, INT, INT, ANY, ANY, TO_WORDS)
def widen_groups(builder, address, groups, steps, zero, four_codes, sum_kind, target, kinds):
    """Writes a tile's weights, of `groups` groups of 4 × `steps` inputs, without the outputs' factors.

    four_codes: a value of uint16 for weights of 4 bits, uint32 for 8; sum_kind: float32 if the tile has
    offsets, otherwise they are -zero times the scales; target: words [inputs / 2, TILE] of pairs of inputs
    """
    bits, has_offsets = kinds[4].bitwidth // 4, kinds[5] == FLOAT
    if not amx.is_compiled():
        return
    start = builder.inttoptr(address, I8.as_pointer())
    head = VECTOR * (2 if has_offsets else 1)
    group_bytes = builder.add(size(head), builder.mul(steps, size(VECTOR * bits // 4)))
    less = splat(builder, builder.fneg(builder.sitofp(zero, F32)), FLOATS)
    with cgutils.for_range(builder, groups) as group:
        place = builder.gep(start, [builder.mul(group.index, group_bytes)])
        scales = [read_halves(builder, place, half) for half in range(2)]
        if has_offsets:
            offsets = [read_halves(builder, place, 2 + half) for half in range(2)]
        else:
            offsets = [builder.fmul(scale, less) for scale in scales]
        codes = builder.gep(place, [size(head)])
        with cgutils.for_range(builder, steps) as step:
            number = builder.add(builder.mul(group.index, steps), step.index)
            to = builder.gep(target, [builder.mul(number, size(2 * TILE))])
            of_step = builder.gep(codes, [builder.mul(step.index, size(VECTOR * bits // 4))])
            for half, four in enumerate(read_codes(builder, of_step, bits)):
                low, high = _pairs(builder, four, scales[half], offsets[half])
                write(builder, low, builder.gep(to, [size(half * LANES)]))
                write(builder, high, builder.gep(to, [size(TILE + half * LANES)]))


def _pairs(builder: ir.IRBuilder, four: ir.Value, scale: ir.Value, offset: ir.Value) -> list[ir.Value]:
    """The weights of the first two inputs as pairs, and those of the last two."""
    values = []
    for index in range(4):
        code = builder.and_(builder.lshr(four, words(8 * index)), words(0xFF))
        values.append(fma(builder, builder.sitofp(code, FLOATS), scale, offset))
    return [round_pairs(builder, *values[first : first + 2]) for first in (0, 2)]
