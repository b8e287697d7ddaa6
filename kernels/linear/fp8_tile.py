"""Products of a few rows with a strip of FP8 (E4M3) weights.

A strip holds the codes of 64 outputs, two bytes for each output and pair of inputs: for each pair, a vector
of 64 bytes with outputs 0 to 31, then one with outputs 32 to 63. `PLACES` gives the order within a vector.
The codes are widened to bfloat16 for `vdpbf16ps`, otherwise to float32. Both are exact.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils

from ..common.bfloat16_dots import add_pair_products
from ..common.emits import ANY, INT, TO_CODES, TO_FLOATS, VOID, Intrinsic, branch, emits
from ..common.llvm import F16, F32, I8, I16, I32, SECOND_LEVEL, prefetch_line, read, size, write
from ..common.numba_tools import has_feature
from ..common.vectors import FLOATS, LANES, WORDS, floats, fma, read_vectors, splat, words, zeros

VECTORS = 4
OUTPUTS = VECTORS * LANES
"""outputs of a strip"""

PLACES = [output // 4 % 4 * 8 + output // 16 * 4 + output % 4 for output in range(32)]
"""Where each of 32 outputs has its pair of codes. `vpunpcklbw` and `vpunpckhbw`, which interleave 16 bytes
at a time, then give outputs 0 to 15 and 16 to 31 in order."""

PAIR_BYTES = 2 * OUTPUTS
VECTOR = 64  # bytes

FLOAT_VECTORS = VECTORS if has_feature("avx512f") else 1
"""Vectors of outputs that one pass over the buffer multiplies: the sums of six rows stay in registers."""

_BYTES = ir.VectorType(I8, VECTOR)
_WIDENED = torch.arange(128, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.bfloat16)
_HIGH, _LOW = (_WIDENED.view(torch.uint8).numpy()[start::2] for start in (1, 0))
"""the bytes of the codes without a sign, as bfloat16"""


class _Block(NamedTuple):
    """A block of a strip: the addresses of its codes, of a buffer for the widened codes, and of bytes to
    prefetch, `step` from one pair to the next."""

    count: ir.Value
    """pairs of inputs"""
    codes: ir.Value
    buffer: ir.Value
    later: ir.Value
    step: ir.Value


def tiles(rows: range, reads: bool, writes: bool) -> Intrinsic:
    """The function that computes sums[r, o] += scales[o] · sum over pairs p of x[r, p] · weights[p, o].

    It does so for a block of a strip, of `count` pairs, and `number` rows, which is one of `rows`.

    x: pairs of values, `stride` from one row to the next: uint32 for bfloat16, uint64 for float32. sums:
    float32 [rows, OUTPUTS]. The pairs are added in order, so a row's result does not depend on the number of
    rows. With pair p the kernel prefetches two cache lines from byte `step` · p of `later` on.

    reads: the widened codes are in the buffer; otherwise they are widened here, and the buffer gets them if
    `writes`. For float32 it always gets them. It needs 2 · OUTPUTS floats for each pair.
    """

    @emits(VOID, INT, INT, ANY, INT, TO_CODES, TO_FLOATS, TO_FLOATS, TO_FLOATS, TO_CODES, INT)
    def multiply(builder, number, count, x, stride, codes, buffer, scales, sums, later, step, kinds):
        block = _Block(count, codes, buffer, later, step)

        def multiply_rows(number: int) -> None:
            starts = [builder.gep(x, [builder.mul(stride, size(row))]) for row in range(number)]
            if kinds[2].dtype == types.uint32:
                _multiply_pairs(builder, starts, block, reads, writes, scales, sums)
                return
            if not reads:
                _widen_block(builder, block)
            for start in range(0, OUTPUTS, FLOAT_VECTORS * LANES):
                _multiply_floats(builder, starts, block, start, scales, sums)

        branch(builder, number, rows, multiply_rows)

    return multiply


def _multiply_pairs(
    builder: ir.IRBuilder,
    starts: list[ir.Value],
    block: _Block,
    reads: bool,
    writes: bool,
    scales: ir.Value,
    sums: ir.Value,
) -> None:
    totals = zeros(builder, len(starts) * VECTORS)
    with cgutils.for_range(builder, block.count) as loop:
        _prefetch(builder, block, loop.index)
        first = builder.gep(block.buffer, [builder.mul(loop.index, size(OUTPUTS))])
        if reads:
            vectors = read_vectors(builder, first, WORDS, VECTORS)
        else:
            codes = builder.gep(block.codes, [builder.mul(loop.index, size(PAIR_BYTES))])
            halves = (builder.gep(codes, [size(half)]) for half in (0, VECTOR))
            vectors = [vector for half in halves for vector in _pairs(builder, half)]
        if writes:
            for at, vector in enumerate(vectors):
                write(builder, vector, builder.gep(first, [size(at * LANES)]))
        for row, start in enumerate(starts):
            pair = builder.load(builder.gep(start, [loop.index]))
            add_pair_products(builder, totals[row * VECTORS : (row + 1) * VECTORS], pair, vectors)
    _add_scaled(builder, totals, scales, sums, VECTORS)


def _multiply_floats(
    builder: ir.IRBuilder,
    starts: list[ir.Value],
    block: _Block,
    output: int,
    scales: ir.Value,
    sums: ir.Value,
) -> None:
    """For FLOAT_VECTORS vectors of outputs from `output` on, whose weights are in the buffer."""
    totals = zeros(builder, len(starts) * FLOAT_VECTORS)
    with cgutils.for_range(builder, builder.mul(block.count, size(2))) as loop:
        first = builder.gep(block.buffer, [builder.mul(loop.index, size(OUTPUTS))])
        vectors = read_vectors(builder, builder.gep(first, [size(output)]), FLOATS, FLOAT_VECTORS)
        for row, start in enumerate(starts):
            x = builder.gep(builder.bitcast(start, F32.as_pointer()), [loop.index])
            value = splat(builder, builder.load(x), FLOATS)
            of_row = totals[row * FLOAT_VECTORS : (row + 1) * FLOAT_VECTORS]
            for total, vector in zip(of_row, vectors, strict=True):
                builder.store(fma(builder, value, vector, builder.load(total)), total)
    scales, sums = (builder.gep(each, [size(output)]) for each in (scales, sums))
    _add_scaled(builder, totals, scales, sums, FLOAT_VECTORS)


def _widen_block(builder: ir.IRBuilder, block: _Block) -> None:
    """Write the block's weights to the buffer as float32 [count, 2, OUTPUTS]."""
    with cgutils.for_range(builder, block.count) as loop:
        _prefetch(builder, block, loop.index)
        codes = builder.gep(block.codes, [builder.mul(loop.index, size(PAIR_BYTES))])
        to = builder.gep(block.buffer, [builder.mul(loop.index, size(2 * OUTPUTS))])
        for half in range(2):
            pairs = _floats(builder, builder.gep(codes, [size(half * VECTOR)]))
            for number, pair in enumerate(pairs):
                for each, values in enumerate(pair):
                    place = size(each * OUTPUTS + (2 * half + number) * LANES)
                    write(builder, values, builder.gep(to, [place]))


def _prefetch(builder: ir.IRBuilder, block: _Block, pair: ir.Value) -> None:
    line = builder.gep(block.later, [builder.mul(pair, block.step)])
    for start in (0, VECTOR):
        prefetch_line(builder, builder.gep(line, [size(start)]), SECOND_LEVEL)


def _add_scaled(
    builder: ir.IRBuilder, totals: list[ir.Value], scales: ir.Value, sums: ir.Value, vectors: int
) -> None:
    """Add the totals of rows, `vectors` each, times the scales to the sums [rows, OUTPUTS]."""
    factors = read_vectors(builder, scales, FLOATS, vectors)
    for number, total in enumerate(totals):
        row, vector = divmod(number, vectors)
        place = builder.gep(sums, [size(row * OUTPUTS + vector * LANES)])
        value = fma(builder, builder.load(total), factors[vector], read(builder, place, FLOATS))
        write(builder, value, place)


def _pairs(builder: ir.IRBuilder, place: ir.Value) -> list[ir.Value]:
    """The 64 codes at an address as two vectors of words with two bfloat16 values each."""
    if not has_feature("avx512vbmi"):
        sixteen = words(16)
        return [
            builder.or_(builder.lshr(builder.bitcast(first, WORDS), sixteen), builder.bitcast(second, WORDS))
            for first, second in _floats(builder, place)
        ]
    codes = read(builder, place, _BYTES)
    signs = builder.and_(codes, _bytes(np.full(VECTOR, 0x80)))
    high = builder.or_(_looked_up(builder, _HIGH, codes), signs)
    low = _looked_up(builder, _LOW, codes)
    orders = (
        [start + 16 * block + at + other for block in range(4) for at in range(8) for other in (0, VECTOR)]
        for start in (0, 8)
    )
    return [
        builder.bitcast(
            builder.shuffle_vector(low, high, ir.Constant(ir.VectorType(I32, VECTOR), order)), WORDS
        )
        for order in orders
    ]


def _looked_up(builder: ir.IRBuilder, table: np.ndarray, codes: ir.Value) -> ir.Value:
    """The entries of a table of 128 bytes at the codes without their signs, by `vpermi2b`."""
    kind = ir.FunctionType(_BYTES, [_BYTES] * 3)
    name = "llvm.x86.avx512.vpermi2var.qi.512"
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, [_bytes(table[:VECTOR]), codes, _bytes(table[VECTOR:])])


def _bytes(values: np.ndarray) -> ir.Constant:
    return ir.Constant(_BYTES, values.tolist())


def _floats(builder: ir.IRBuilder, place: ir.Value) -> list[tuple[ir.Value, ir.Value]]:
    """The 64 codes at an address as two pairs of float32 vectors: the first and the second inputs."""
    shorts = ir.VectorType(I16, 2 * LANES)
    codes = read(builder, place, shorts)
    found = []
    for start in (0, 4):
        order = ir.Constant(WORDS, [8 * (lane // 4) + start + lane % 4 for lane in range(LANES)])
        pairs = builder.zext(builder.shuffle_vector(codes, codes, order), WORDS)
        found.append((_widen(builder, pairs), _widen(builder, builder.lshr(pairs, words(8)))))
    return found


def _widen(builder: ir.IRBuilder, codes: ir.Value) -> ir.Value:
    """The codes in the lowest bytes of words, as float32.

    Moved to the positions of float16, the bits of a code are its value / 256, also for subnormal values.
    """
    sign = builder.shl(builder.and_(codes, words(0x80)), words(8))
    magnitude = builder.shl(builder.and_(codes, words(0x7F)), words(7))
    halves = builder.trunc(builder.or_(sign, magnitude), ir.VectorType(I16, LANES))
    values = builder.fpext(builder.bitcast(halves, ir.VectorType(F16, LANES)), ir.VectorType(F32, LANES))
    return builder.fmul(values, floats(256.0))
