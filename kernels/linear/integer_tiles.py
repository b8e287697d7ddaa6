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
from .byte_dots import (
    FORMATS,
    TILE,
    UNROLLED,
    VECTOR,
    Blocks,
    block_layout,
    read_bytes,
    read_codes,
    read_halves,
)

_HALF = TILE // 2
_VECTOR_WORDS = VECTOR // 4


@compiled
def pack_codes(tiles, begin, codes, group, code_words, bits):
    """Writes codes of outputs from `begin` on into tiles, where they are 0.

    tiles: uint32 [tiles, blocks, words of a block], see `block_layout`; codes: uint32 [n, inputs / 4], a byte
    for each code; code_words: of a block, before the first code
    """
    blocks, steps = tiles.shape[1], codes.shape[1] // tiles.shape[1]
    for row in range(len(codes)):
        output = begin + row
        half, lane = output % TILE // _HALF, output % _HALF
        for block in range(blocks):
            target, source = tiles[output // TILE, block], codes[row, block * steps : (block + 1) * steps]
            for step in range(steps):
                turn, at = step // UNROLLED, step % UNROLLED
                here = code_words + turn * _VECTOR_WORDS * bits + lane
                if bits == 8:
                    target[here + (2 * at + half) * _VECTOR_WORDS] = source[step]
                    continue
                low = source[step] & np.uint32(0x0F0F0F0F)
                target[here + at * _VECTOR_WORDS] |= low << np.uint32(4 * half)
                if bits > 4:
                    place = (2 * at + half) * (bits - 4)
                    high = source[step] >> np.uint32(4) & np.uint32(0x01010101 * ((1 << (bits - 4)) - 1))
                    vector = UNROLLED + place // 8
                    target[here + vector * _VECTOR_WORDS] |= high << np.uint32(place % 8)


@ParallelKernel
def expand_rows(arguments):
    """Arguments: the counter of rows, then those of `IntegerCpuProduct.rows`: the rows, the numbers of their
    outputs and the bytes of a number; tiles, factors and the order of inputs (0: as stored); inputs, inputs
    of a group, zero, whether there are offsets, bits, whether there are factors; the results and their kind,
    of `integer_cpu.KINDS`.
    """
    inputs = arguments[7]
    while True:
        row = fetch_add(arguments, 1)
        if row >= arguments[1]:
            break
        weights = np.empty(inputs, np.float32)
        _expand(arguments, number_at(arguments[2], arguments[3], row), weights)
        store_row(weights, arguments[13], row, arguments[14])


@compiled
def _expand(arguments, output, weights):
    """Writes the weights of an output, float32 [inputs]."""
    inputs, group, zero = arguments[7], arguments[8], arguments[9]
    tables, bits, has_factors = 2 if arguments[10] != 0 else 1, arguments[11], arguments[12] != 0
    size, head, of_block = block_layout(bits, group, tables, has_factors)
    groups = of_block // group
    tile = arguments[4] + output // TILE * (inputs // of_block) * size
    order = pointer(arguments[6], np.int64(0))
    factor = pointer(arguments[5], np.float32(0))[output]
    for index in range(inputs // group):
        block, within = tile + index // groups * size, index % groups
        scale, offset = _read_tables(block, within, tables, has_factors, output % TILE)
        scale, offset = scale * factor, offset * factor
        codes = pointer(block + head + within * TILE * group * bits // 8, np.uint8(0))
        for place in range(group):
            code = _read_code(codes, place // 4, place % 4, output % TILE, bits)
            column = index * group + place
            if arguments[6] != 0:
                column = order[column]
            weights[column] = np.float32(code - zero) * scale + offset


@compiled
def _read_tables(block, within, tables, has_factors, output):
    """The scale and the offset, or 0, of an output and of group `within` of a block."""
    halves = pointer(block, np.int16(0))
    if not has_factors:
        return load(halves, output), load(halves, TILE + output) if tables == 2 else np.float32(0)
    values = pointer(block + VECTOR * tables + within * tables * TILE, np.int8(0))
    scale = load(values, output) * load(halves, output)
    if tables == 1:
        return scale, np.float32(0)
    return scale, load(values, TILE + output) * load(halves, TILE + output)


@compiled
def _read_code(codes, step, byte, output, bits):
    half, lane = output // _HALF, 4 * (output % _HALF) + byte
    turn, at = step // UNROLLED, step % UNROLLED
    here = turn * VECTOR * bits + lane
    if bits == 8:
        return np.int32(codes[here + (2 * at + half) * VECTOR])
    code = np.int32(codes[here + at * VECTOR]) >> 4 * half & 15
    if bits > 4:
        place = (2 * at + half) * (bits - 4)
        high = np.int32(codes[here + (UNROLLED + place // 8) * VECTOR]) >> place % 8 & (1 << (bits - 4)) - 1
        code |= high << 4
    return code


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
def widen_groups(builder, address, groups, steps, zero, stored, sum_kind, target, kinds):
    """Writes a tile's weights, of `groups` groups of 4 × `steps` inputs, without the outputs' factors.

    stored: of the type that stands for the tile's format in FORMATS; sum_kind: float32 if the tile has
    offsets, otherwise they are -zero times the scales; target: words [inputs / 2, TILE] of pairs of inputs
    """
    form, has_offsets = FORMATS[kinds[4]], kinds[5] == FLOAT
    if not amx.is_compiled():
        return
    start = builder.inttoptr(address, I8.as_pointer())
    less = splat(builder, builder.fneg(builder.sitofp(zero, F32)), FLOATS)
    blocks = Blocks.of(builder, steps, form, 2 if has_offsets else 1)
    with cgutils.for_range(builder, groups) as group:
        block, at, first = blocks.find_group(builder, group.index)
        factors = builder.gep(start, [block]) if form.has_factors else None
        place = builder.gep(start, [at])
        scales = [_read_scales(builder, place, factors, half) for half in range(2)]
        if has_offsets:
            offsets = [_read_scales(builder, place, factors, 2 + half) for half in range(2)]
        else:
            offsets = [builder.fmul(scale, less) for scale in scales]
        codes = builder.gep(start, [first])
        with cgutils.for_range(builder, builder.udiv(steps, size(UNROLLED))) as turn:
            of_turn = builder.gep(codes, [builder.mul(turn.index, size(VECTOR * form.bits))])
            done = builder.add(builder.mul(group.index, steps), builder.mul(turn.index, size(UNROLLED)))
            for step in range(UNROLLED):
                number = builder.add(done, size(step))
                to = builder.gep(target, [builder.mul(number, size(2 * TILE))])
                for half, four in enumerate(read_codes(builder, of_turn, step, form.bits)):
                    low, high = _pairs(builder, four, scales[half], offsets[half])
                    write(builder, low, builder.gep(to, [size(half * LANES)]))
                    write(builder, high, builder.gep(to, [size(TILE + half * LANES)]))


def _read_scales(builder: ir.IRBuilder, place: ir.Value, factors: ir.Value | None, number: int) -> ir.Value:
    """Reads the scales or offsets of 16 outputs as float32. number: 0 and 1 for the scales, 2 and 3 for the
    offsets. factors: where the block's factors are; None if the values are float16."""
    if factors is None:
        return read_halves(builder, place, number)
    values = builder.sitofp(read_bytes(builder, place, number), FLOATS)
    return builder.fmul(values, read_halves(builder, factors, number))


def _pairs(builder: ir.IRBuilder, four: ir.Value, scale: ir.Value, offset: ir.Value) -> list[ir.Value]:
    """The weights of the first two inputs as pairs, and those of the last two."""
    values = []
    for index in range(4):
        code = builder.and_(builder.lshr(four, words(8 * index)), words(0xFF))
        values.append(fma(builder, builder.sitofp(code, FLOATS), scale, offset))
    return [round_pairs(builder, *values[first : first + 2]) for first in (0, 2)]
