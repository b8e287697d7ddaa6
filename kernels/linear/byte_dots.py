"""Products of 8-bit activations with weights of 4 or 8 bits, 32 outputs at a time.

A tile holds the weights of 32 outputs as one stream of 64-byte vectors. For each group of inputs: the scales
of the outputs (float16), their offsets (float16, only if the format has them), then the codes. A 32-bit lane
of a vector of codes belongs to one output and holds its codes of 4 inputs. 8 bits: a vector for outputs 0–15,
then one for 16–31. 4 bits: one vector, with outputs 0–15 in the low halves of its bytes.
"""

from __future__ import annotations

import platform
from typing import NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils

from ..common.emits import ANY, BOOL, FLOAT, INT, TO_CODES, TO_FLOATS, VOID, branch, emits
from ..common.llvm import I8, I16, I32, SECOND_LEVEL, prefetch_line, read, size, write
from ..common.numba_tools import has_feature
from ..common.vectors import (
    FLOATS,
    HALVES,
    LANES,
    WORDS,
    fma,
    join,
    read_vectors,
    splat,
    split,
    words,
    write_floats,
)

TILE = 2 * LANES
"""outputs of a tile"""
VECTOR = 64  # bytes
WHOLE_PACE = 256
"""The value of `pace` (see `add_products`) with which as many bytes are prefetched as are multiplied."""
MAX_ROWS = 6
"""Rows that are multiplied with a tile at a time, at most."""
UNROLLED = 4
"""Steps of 4 inputs in a turn of the innermost loop: each group has a multiple of 16 inputs."""


def available() -> bool:
    """Whether the processor converts float16 and has fused multiply-adds: numba has no library for them."""
    return platform.machine() not in ("x86_64", "AMD64") or (has_feature("f16c") and has_feature("fma"))


def dot_width() -> int:
    """Bits of the widest vector whose bytes the processor multiplies and adds in one instruction, or 0."""
    if has_feature("avx512vnni"):
        return 512
    return 256 if has_feature("avxvnni") else 0


@emits(
    VOID,
    *(INT, INT, INT, INT, INT, ANY, TO_CODES, INT, TO_FLOATS, INT, ANY, INT, TO_FLOATS),
    types.UniTuple(INT, 2),
)
def add_products(
    builder, rows, passes, groups, parts, steps, codes, x, x_row, scales, scales_row, sums, sums_row, out,
    fetch, kinds,
):  # fmt: skip
    """Adds the products of `passes` × `rows` rows, 1 to MAX_ROWS, with a tile, or with some of its inputs.

    These are `groups` × `parts` groups of 4 × `steps` inputs; `parts` groups share a scale of activations and
    are multiplied with all rows before the next ones.

    codes: the tile, as a pointer to what holds 4 codes: uint16 for 4 bits, uint32 for 8
    x: codes of activations, `x_row` bytes from one row to the next
    scales: of activations, float32 [rows, groups], `scales_row` from one row to the next
    sums: of a group's activation codes, [rows, groups × parts], `sums_row` from one row to the next: float32
    if the tile has offsets; otherwise int32, multiplied by -zero
    out: float32 [rows, 32], added to
    fetch: int64 (ahead, pace). While the first pass multiplies the codes from byte n of the tile on, it
    prefetches those from byte `ahead` + n * `pace` / WHOLE_PACE on.

    A group's sum is exact and groups are added in order, so a row's result depends on nothing else.
    """
    bits, offsets = kinds[5].dtype.bitwidth // 4, kinds[10].dtype == FLOAT
    tables = scales, scales_row, sums, sums_row, out
    codes, (ahead, pace) = builder.bitcast(codes, I8.as_pointer()), cgutils.unpack_tuple(builder, fetch)

    def add(number: int) -> None:
        given = passes, groups, parts, steps, codes, x, x_row, *tables, ahead, pace
        _TileProducts(builder, number, bits, offsets, *given).emit()

    branch(builder, rows, range(1, MAX_ROWS + 1), add)


@emits(VOID, TO_FLOATS, TO_FLOATS, TO_FLOATS, BOOL, ANY)
def write_results(builder, totals, factors, bias, biased, y, kinds):
    """Writes 32 results: totals, times factors, plus the bias if `biased`."""
    for start in (0, LANES):
        total, factor = (
            read(builder, builder.gep(each, [size(start)]), FLOATS) for each in (totals, factors)
        )
        value = cgutils.alloca_once_value(builder, builder.fmul(total, factor))
        with builder.if_then(biased):
            addend = read(builder, builder.gep(bias, [size(start)]), FLOATS)
            builder.store(builder.fadd(builder.load(value), addend), value)
        write_floats(builder, builder.load(value), builder.gep(y, [size(start)]), kinds[4].dtype)


class _Rows(NamedTuple):
    """The rows of one pass: pointers as in `add_products`."""

    x: ir.Value
    scales: ir.Value
    sums: ir.Value
    out: ir.Value
    ahead: ir.Value
    pace: ir.Value


class _TileProducts:
    """Emits the code of one function."""

    def __init__(
        self, builder: ir.IRBuilder, rows: int, bits: int, offsets: bool, *arguments: ir.Value
    ) -> None:
        self._builder = builder
        self._rows, self._bits, self._offsets = rows, bits, offsets
        self._passes, self._groups, self._parts, self._steps, *tables = arguments
        self._codes, self._x, self._x_row, self._scales, self._scales_row, *tables = tables
        self._sums, self._sums_row, self._out, self._ahead, self._pace = tables
        self._step_bytes = VECTOR * bits // 4
        self._head = 2 * VECTOR if offsets else VECTOR

    def emit(self) -> None:
        builder, count = self._builder, 2 * self._rows
        ints = [cgutils.alloca_once(builder, WORDS) for _ in range(count)]
        totals = [cgutils.alloca_once(builder, FLOATS) for _ in range(count)]
        group_bytes = builder.add(size(self._head), builder.mul(self._steps, size(self._step_bytes)))
        loops = cgutils.for_range(builder, self._groups), cgutils.for_range(builder, self._passes)
        with loops[0] as group, loops[1] as turn:
            rows = self._rows_of(turn.index)
            for total in totals:
                builder.store(ir.Constant(FLOATS, None), total)
            # A single part needs no loop. Without the loop, groups of 128 inputs take 0.93 of the time.
            with builder.if_else(builder.icmp_signed("==", self._parts, size(1))) as (one, several):
                with one:
                    self._add_group(rows, ints, totals, group_bytes, group.index)
                    self._add_totals(rows, totals, group.index)
                with several:
                    with cgutils.for_range(builder, self._parts) as part:
                        index = builder.add(builder.mul(group.index, self._parts), part.index)
                        self._add_group(rows, ints, totals, group_bytes, index)
                    self._add_totals(rows, totals, group.index)

    def _rows_of(self, turn: ir.Value) -> _Rows:
        builder = self._builder
        first = builder.mul(turn, size(self._rows))
        steps = (self._x_row, self._scales_row, self._sums_row, size(TILE))
        starts = (self._x, self._scales, self._sums, self._out)
        x, scales, sums, out = (
            builder.gep(start, [builder.mul(first, step)]) for start, step in zip(starts, steps, strict=True)
        )
        is_first = builder.icmp_signed("==", turn, size(0))
        ahead = builder.select(is_first, self._ahead, size(0))
        return _Rows(x, scales, sums, out, ahead, builder.select(is_first, self._pace, size(WHOLE_PACE)))

    def _add_group(
        self,
        rows: _Rows,
        ints: list[ir.Value],
        totals: list[ir.Value],
        group_bytes: ir.Value,
        index: ir.Value,
    ) -> None:
        """Add the products of a group that has one scale for each output, without the activations' scale."""
        builder = self._builder
        at = builder.mul(index, group_bytes)
        group = builder.gep(self._codes, [at])
        codes = builder.gep(group, [size(self._head)])
        x = builder.gep(rows.x, [builder.mul(builder.mul(index, self._steps), size(4))])
        self._start(rows, ints, index)
        self._prefetch(rows, at, self._head)
        with cgutils.for_range(builder, builder.udiv(self._steps, size(UNROLLED))) as loop:
            done = builder.mul(loop.index, size(UNROLLED * self._step_bytes))
            here = builder.gep(codes, [done])
            activations = builder.gep(x, [builder.mul(loop.index, size(4 * UNROLLED))])
            self._prefetch(
                rows, builder.add(builder.add(at, size(self._head)), done), UNROLLED * self._step_bytes
            )
            for step in range(UNROLLED):
                place = builder.gep(here, [size(step * self._step_bytes)])
                self._add_dots(ints, place, builder.gep(activations, [size(4 * step)]))
        self._scale(rows, totals, ints, group, index)

    def _prefetch(self, rows: _Rows, at: ir.Value, count: int) -> None:
        """Emits the prefetches that go with multiplying `count` bytes from byte `at` of the tile on.

        The bytes go to the second-level cache. Prefetched into the first-level cache, weights were read at
        27 GB/s by a processor that could read 36 to 63 (bench/results/cpu-notes.md).
        """
        builder = self._builder
        for start in range(0, count, VECTOR):
            paced = builder.mul(builder.add(at, size(start)), rows.pace)
            byte = builder.add(rows.ahead, builder.sdiv(paced, size(WHOLE_PACE)))
            prefetch_line(builder, builder.gep(self._codes, [byte]), SECOND_LEVEL)

    def _start(self, rows: _Rows, ints: list[ir.Value], group: ir.Value) -> None:
        """Set the integer sums to their values before the first product of a group."""
        for row in range(self._rows):
            start = ir.Constant(WORDS, None)
            if not self._offsets:
                word = self._builder.load(self._of_row(rows.sums, self._sums_row, row, group))
                start = splat(self._builder, word, WORDS)
            for total in ints[2 * row : 2 * row + 2]:
                self._builder.store(start, total)

    def _add_dots(self, ints: list[ir.Value], codes: ir.Value, x: ir.Value) -> None:
        builder = self._builder
        weights = read_codes(builder, codes, self._bits)
        for row in range(self._rows):
            word = read(builder, builder.gep(x, [builder.mul(self._x_row, size(row))]), I32)
            activations = splat(builder, word, WORDS)
            for half, weight in enumerate(weights):
                total = ints[2 * row + half]
                builder.store(_dot(builder, builder.load(total), weight, activations), total)

    def _scale(
        self,
        rows: _Rows,
        totals: list[ir.Value],
        ints: list[ir.Value],
        group: ir.Value,
        index: ir.Value,
    ) -> None:
        """Add a group's integer sums, times the weights' scales, to the totals."""
        builder = self._builder
        halves = [read_halves(builder, group, half) for half in range(4 if self._offsets else 2)]
        for row in range(self._rows):
            for half in range(2):
                total = totals[2 * row + half]
                dots = builder.sitofp(builder.load(ints[2 * row + half]), FLOATS)
                value = fma(builder, dots, halves[half], builder.load(total))
                if self._offsets:
                    word = builder.load(self._of_row(rows.sums, self._sums_row, row, index))
                    value = fma(builder, splat(builder, word, FLOATS), halves[2 + half], value)
                builder.store(value, total)

    def _add_totals(self, rows: _Rows, totals: list[ir.Value], group: ir.Value) -> None:
        """Add the totals of groups, times the activations' scale, to the results."""
        builder = self._builder
        for row in range(self._rows):
            word = builder.load(self._of_row(rows.scales, self._scales_row, row, group))
            scale = splat(builder, word, FLOATS)
            for half in range(2):
                place = builder.gep(rows.out, [size(row * TILE + half * LANES)])
                total = builder.load(totals[2 * row + half])
                write(builder, fma(builder, total, scale, read(builder, place, FLOATS)), place)

    def _of_row(self, table: ir.Value, stride: ir.Value, row: int, index: ir.Value) -> ir.Value:
        return self._builder.gep(table, [self._builder.add(self._builder.mul(stride, size(row)), index)])


def read_codes(builder: ir.IRBuilder, place: ir.Value, bits: int) -> list[ir.Value]:
    """Two vectors of codes, one byte each: those of outputs 0–15 and those of outputs 16–31, for 4 inputs."""
    if bits == 8:
        return read_vectors(builder, builder.bitcast(place, I32.as_pointer()), WORDS, 2)
    both, mask = read(builder, place, WORDS), words(0x0F0F0F0F)
    shifted = builder.lshr(both, words(4))
    return [builder.and_(both, mask), builder.and_(shifted, mask)]


def read_halves(builder: ir.IRBuilder, place: ir.Value, number: int) -> ir.Value:
    """Reads 16 values of float16, number 16 × `number` and those after it, and converts them to float32."""
    halves = read(builder, builder.gep(place, [size(number * VECTOR // 2)]), HALVES)
    return builder.fpext(halves, FLOATS)


def _dot(builder: ir.IRBuilder, total: ir.Value, codes: ir.Value, activations: ir.Value) -> ir.Value:
    """Adds to each lane the 4 products of its unsigned codes and its signed activations."""
    width = dot_width()
    if width == 0:
        return _dot_of_pairs(builder, total, codes, activations)
    kind = ir.VectorType(I32, width // 32)
    name = f"llvm.x86.avx512.vpdpbusd.{width}"
    dot = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), name)
    parts = [split(builder, value, width // 32) for value in (total, codes, activations)]
    return join(builder, [builder.call(dot, part) for part in zip(*parts, strict=True)])


def _dot_of_pairs(builder: ir.IRBuilder, total: ir.Value, codes: ir.Value, activations: ir.Value) -> ir.Value:
    """`_dot` from products of 16-bit integers whose neighbours are added (`vpmaddwd` on AVX2)."""
    shorts = ir.VectorType(I16, 2 * LANES)
    eight = ir.Constant(shorts, [8] * (2 * LANES))
    code_pairs, activation_pairs = builder.bitcast(codes, shorts), builder.bitcast(activations, shorts)
    even = builder.ashr(builder.shl(activation_pairs, eight), eight)
    low = builder.and_(code_pairs, ir.Constant(shorts, [0xFF] * (2 * LANES)))
    for one, other in ((low, even), (builder.lshr(code_pairs, eight), builder.ashr(activation_pairs, eight))):
        wide = ir.VectorType(I32, 2 * LANES)
        products = builder.mul(builder.sext(one, wide), builder.sext(other, wide))
        neighbours = [
            builder.shuffle_vector(products, products, ir.Constant(WORDS, list(range(start, 2 * LANES, 2))))
            for start in (0, 1)
        ]
        total = builder.add(total, builder.add(*neighbours))
    return total
