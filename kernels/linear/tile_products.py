"""Products of 8-bit activations with tiles of weights of 4 to 8 bits (see `byte_dots`)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import ClassVar, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils

from ..common.emits import ANY, BOOL, FLOAT, INT, TO_CODES, TO_FLOATS, VOID, branch, emits
from ..common.llvm import I8, I32, SECOND_LEVEL, prefetch_line, read, size, write
from ..common.vectors import FLOATS, LANES, WORDS, fma, splat, write_floats
from .byte_dots import (
    FORMATS,
    SHORTS,
    TILE,
    UNROLLED,
    VECTOR,
    Blocks,
    TileFormat,
    add_byte_products,
    add_neighbours,
    adds_pairs_of_bytes,
    dot,
    read_bytes,
    read_code_bytes,
    read_codes,
    read_halves,
)

PACE_BITS = 8
WHOLE_PACE = 1 << PACE_BITS
"""The value of `pace` (see `add_products`) with which as many bytes are prefetched as are multiplied."""
MAX_ROWS = 6
"""Rows that are multiplied with a tile at a time, at most."""


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

    codes: the tile, as a pointer to the type that stands for its format in FORMATS
    x: codes of activations, `x_row` bytes from one row to the next
    scales: of activations, float32 [rows, groups], `scales_row` from one row to the next
    sums: of a group's activation codes, [rows, groups × parts], `sums_row` from one row to the next: float32
    if the tile has offsets; otherwise int32, multiplied by -zero
    out: float32 [rows, 32], added to
    fetch: int64 (ahead, pace). While the first pass multiplies the codes from byte n of the tile on, it
    prefetches those from byte `ahead` + n * `pace` / WHOLE_PACE on.

    A group's sum is exact and groups are added in order, so a row's result depends on nothing else.
    """
    form, offsets = FORMATS[kinds[5].dtype], kinds[10].dtype == FLOAT
    tables = scales, scales_row, sums, sums_row, out
    codes, (ahead, pace) = builder.bitcast(codes, I8.as_pointer()), cgutils.unpack_tuple(builder, fetch)

    def add(number: int) -> None:
        given = passes, groups, parts, steps, codes, x, x_row, *tables, ahead, pace
        products = _PairProducts if adds_pairs_of_bytes(form.bits) else _TileProducts
        products(builder, number, form, offsets, *given).emit()

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
    """Pointers to the data of the rows of one pass, named as the parameters of `add_products`."""

    x: ir.Value
    scales: ir.Value
    sums: ir.Value
    out: ir.Value
    ahead: ir.Value
    pace: ir.Value


class _TileProducts:
    """Emits the code that multiplies a fixed number of rows with a tile."""

    def __init__(
        self, builder: ir.IRBuilder, rows: int, form: TileFormat, offsets: bool, *arguments: ir.Value
    ) -> None:
        self._builder = builder
        self._rows, self._form, self._offsets = rows, form, offsets
        self._passes, self._groups, self._parts, self._steps, *tables = arguments
        self._codes, self._x, self._x_row, self._scales, self._scales_row, *tables = tables
        self._sums, self._sums_row, self._out, self._ahead, self._pace = tables
        self._turn_bytes = VECTOR * form.bits
        """bytes of the codes of UNROLLED steps"""
        self._tables = 2 if offsets else 1
        self._blocks = Blocks.of(builder, self._steps, form, self._tables)
        self._ints = self._variables(WORDS)
        self._totals = self._variables(FLOATS)
        self._products = self._variables(WORDS) if form.has_factors else {}
        self._totals_of_offsets = self._variables(FLOATS) if form.has_factors and offsets else {}

    def _variables(self, kind: ir.Type) -> dict[int, list[ir.Value]]:
        """A variable for each row of each half."""
        return {
            half: [cgutils.alloca_once(self._builder, kind) for _ in range(self._rows)] for half in (0, 1)
        }

    def emit(self) -> None:
        """Multiplies one block of the tile with all rows, then the next one."""
        builder = self._builder
        has_factors = self._form.has_factors
        groups = builder.udiv(self._blocks.groups, self._parts) if has_factors else size(1)
        blocks = builder.udiv(self._groups, groups)
        loops = cgutils.for_range(builder, blocks), cgutils.for_range(builder, self._passes)
        with loops[0] as block, loops[1] as turn:
            rows, first = self._rows_of(turn.index), builder.mul(block.index, groups)
            for halves in self._sets_of_halves():
                if has_factors:
                    self._add_block(rows, first, groups, halves)
                else:
                    self._add_group(rows, first, halves)

    def _sets_of_halves(self) -> tuple[tuple[int, ...], ...]:
        """The halves of a tile, 16 outputs each, that are multiplied at a time."""
        return ((0, 1),)

    def _add_group(self, rows: _Rows, index: ir.Value, halves: tuple[int, ...]) -> None:
        """Adds the products of a group of activations to the results."""
        self._clear(self._totals, halves)
        self._add_parts(rows, index, halves)
        for row, scale in enumerate(self._read_activation_scales(rows, index)):
            for half in halves:
                self._add_results(rows, row, half, ((self._totals[half][row], scale),))

    def _add_block(self, rows: _Rows, first: ir.Value, groups: ir.Value, halves: tuple[int, ...]) -> None:
        """Adds the products of a block, `groups` groups of activations from `first` on, to the results."""
        builder = self._builder
        tables = (self._totals, self._totals_of_offsets)[: self._tables]
        for table in tables:
            self._clear(table, halves)
        start, *_ = self._blocks.find_group(builder, builder.mul(first, self._parts))
        if 0 in halves:
            self._prefetch(rows, start, self._blocks.head)
        with cgutils.for_range(builder, groups) as group:
            index = builder.add(first, group.index)
            self._clear(self._products, halves)
            self._add_parts(rows, index, halves)
            for row, scale in enumerate(self._read_activation_scales(rows, index)):
                for half in halves:
                    products = builder.sitofp(builder.load(self._products[half][row]), FLOATS)
                    total = self._totals[half][row]
                    builder.store(fma(builder, products, scale, builder.load(total)), total)
        place = builder.gep(self._codes, [start])
        for half in halves:
            factors = [read_halves(builder, place, 2 * number + half) for number in range(self._tables)]
            for row in range(self._rows):
                totals = [table[half][row] for table in tables]
                self._add_results(rows, row, half, zip(totals, factors, strict=True))

    def _clear(self, table: dict[int, list[ir.Value]], halves: tuple[int, ...]) -> None:
        for variable in chain.from_iterable(table[half] for half in halves):
            self._builder.store(ir.Constant(variable.type.pointee, None), variable)

    def _add_parts(self, rows: _Rows, index: ir.Value, halves: tuple[int, ...]) -> None:
        """Adds the products of a group of activations, without their scale."""
        builder = self._builder
        # A single part needs no loop. Without it, a product in groups of 128 inputs takes 0.93 times as long.
        with builder.if_else(builder.icmp_signed("==", self._parts, size(1))) as (one, several):
            with one:
                self._add_part(rows, index, index, halves)
            with several, cgutils.for_range(builder, self._parts) as part:
                number = builder.add(builder.mul(index, self._parts), part.index)
                self._add_part(rows, number, index, halves)

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

    def _add_part(self, rows: _Rows, index: ir.Value, group: ir.Value, halves: tuple[int, ...]) -> None:
        """Adds the products of a group of weights, which is a part of a group of activations, without the
        activations' scale."""
        builder = self._builder
        _, scales, codes = self._blocks.find_group(builder, index)
        self._start(rows, index, halves)
        if 0 in halves:
            self._prefetch(rows, scales, self._blocks.scales)
        x = builder.gep(rows.x, [builder.mul(builder.mul(index, self._steps), size(4))])
        self._add_codes(rows, x, codes, halves)
        place = builder.gep(self._codes, [scales])
        if self._form.has_factors:
            self._multiply(rows, place, index, group, halves)
        else:
            self._scale(rows, place, index, halves)

    def _add_codes(self, rows: _Rows, x: ir.Value, at: ir.Value, halves: tuple[int, ...]) -> None:
        """Adds the products of a group's codes, from byte `at` of the tile on, to the integer sums."""
        with cgutils.for_range(self._builder, self._builder.udiv(self._steps, size(UNROLLED))) as loop:
            codes, activations = self._begin_turn(rows, x, at, loop.index, is_first=0 in halves)
            for step in range(UNROLLED):
                self._add_dots(codes, step, activations, halves)

    def _begin_turn(
        self, rows: _Rows, x: ir.Value, at: ir.Value, turn: ir.Value, is_first: bool
    ) -> tuple[ir.Value, ir.Value]:
        """Returns where the codes and the activations of UNROLLED steps lie. If these codes are read for the
        first time, later ones are prefetched."""
        builder = self._builder
        here = builder.add(at, builder.mul(turn, size(self._turn_bytes)))
        if is_first:
            self._prefetch(rows, here, self._turn_bytes)
        activations = builder.gep(x, [builder.mul(turn, size(4 * UNROLLED))])
        return builder.gep(self._codes, [here]), activations

    def _prefetch(self, rows: _Rows, at: ir.Value, count: int) -> None:
        """Emits the prefetches that go with multiplying `count` bytes from byte `at` of the tile on.

        The bytes go to the second-level cache. Prefetched into the first-level cache, weights were read at
        27 GB/s by a processor that could read 36 to 63 (bench/results/cpu-notes.md).
        """
        builder = self._builder
        paced = builder.ashr(builder.mul(at, rows.pace), size(PACE_BITS))
        first = builder.gep(self._codes, [builder.add(rows.ahead, paced)])
        for start in range(0, count, VECTOR):
            prefetch_line(builder, builder.gep(first, [size(start)]), SECOND_LEVEL)

    def _start(self, rows: _Rows, group: ir.Value, halves: tuple[int, ...]) -> None:
        """Sets the integer sums to their values before the first product of a group."""
        for row in range(self._rows):
            start = ir.Constant(WORDS, None)
            if not self._offsets:
                word = self._builder.load(self._of_row(rows.sums, self._sums_row, row, group))
                start = splat(self._builder, word, WORDS)
            for half in halves:
                self._builder.store(start, self._ints[half][row])

    def _add_dots(self, codes: ir.Value, step: int, x: ir.Value, halves: tuple[int, ...]) -> None:
        builder = self._builder
        weights = read_codes(builder, codes, step, self._form.bits)
        for row in range(self._rows):
            activations = splat(builder, self._read_step(x, row, step), WORDS)
            for half in halves:
                total = self._ints[half][row]
                builder.store(dot(builder, builder.load(total), weights[half], activations), total)

    def _read_step(self, x: ir.Value, row: int, step: int) -> ir.Value:
        """The activations of 4 inputs, as a word."""
        at = self._builder.add(self._builder.mul(self._x_row, size(row)), size(4 * step))
        return read(self._builder, self._builder.gep(x, [at]), I32)

    def _scale(self, rows: _Rows, place: ir.Value, index: ir.Value, halves: tuple[int, ...]) -> None:
        """Adds a group's integer sums, times the weights' scales, to the totals."""
        builder = self._builder
        scales = {half: read_halves(builder, place, half) for half in halves}
        offsets = {half: read_halves(builder, place, 2 + half) for half in halves} if self._offsets else {}
        for row in range(self._rows):
            for half in halves:
                total = self._totals[half][row]
                dots = builder.sitofp(builder.load(self._ints[half][row]), FLOATS)
                value = fma(builder, dots, scales[half], builder.load(total))
                if self._offsets:
                    word = builder.load(self._of_row(rows.sums, self._sums_row, row, index))
                    value = fma(builder, splat(builder, word, FLOATS), offsets[half], value)
                builder.store(value, total)

    def _multiply(
        self, rows: _Rows, place: ir.Value, index: ir.Value, group: ir.Value, halves: tuple[int, ...]
    ) -> None:
        """Adds a group's integer sums, times the bytes of the weights' scales, to the products, and what the
        offsets add, without factors, to their totals."""
        builder = self._builder
        scales = {half: read_bytes(builder, place, half) for half in halves}
        for row in range(self._rows):
            for half in halves:
                product = self._products[half][row]
                sums = builder.mul(builder.load(self._ints[half][row]), scales[half])
                builder.store(builder.add(builder.load(product), sums), product)
        if not self._offsets:
            return
        offsets = {half: builder.sitofp(read_bytes(builder, place, 2 + half), FLOATS) for half in halves}
        for row, scale in enumerate(self._read_activation_scales(rows, group)):
            word = builder.load(self._of_row(rows.sums, self._sums_row, row, index))
            activations = builder.fmul(splat(builder, word, FLOATS), scale)
            for half in halves:
                total = self._totals_of_offsets[half][row]
                builder.store(fma(builder, activations, offsets[half], builder.load(total)), total)

    def _read_activation_scales(self, rows: _Rows, group: ir.Value) -> list[ir.Value]:
        """FLOATS for each row: the scale of a group of activations in all lanes."""
        words = [
            self._builder.load(self._of_row(rows.scales, self._scales_row, row, group))
            for row in range(self._rows)
        ]
        return [splat(self._builder, word, FLOATS) for word in words]

    def _add_results(
        self, rows: _Rows, row: int, half: int, pairs: Iterable[tuple[ir.Value, ir.Value]]
    ) -> None:
        """Adds totals, each times its scales, to the results of a row and a half."""
        builder = self._builder
        place = builder.gep(rows.out, [size(row * TILE + half * LANES)])
        value = read(builder, place, FLOATS)
        for total, scales in pairs:
            value = fma(builder, builder.load(total), scales, value)
        write(builder, value, place)

    def _of_row(self, table: ir.Value, stride: ir.Value, row: int, index: ir.Value) -> ir.Value:
        return self._builder.gep(table, [self._builder.add(self._builder.mul(stride, size(row)), index)])


class _PairProducts(_TileProducts):
    """Multiplies codes of 4 to 6 bits on AVX2. The products of a few steps are added in 16 bits, and then to
    the integer sums."""

    _STEPS: ClassVar = {4: 8, 5: 4, 6: 2}
    """by bits of a code: the steps whose sum fits into 16 bits, for instance 8 × 2 × 15 × 127"""

    def _sets_of_halves(self) -> tuple[tuple[int, ...], ...]:
        """AVX2 has 16 registers, and the sums of 3 rows need 12."""
        return ((0, 1),) if self._rows <= 3 else ((0,), (1,))

    def _add_codes(self, rows: _Rows, x: ir.Value, at: ir.Value, halves: tuple[int, ...]) -> None:
        builder, steps = self._builder, self._STEPS[self._form.bits]
        all_turns = builder.udiv(self._steps, size(UNROLLED))
        turns = max(1, steps // UNROLLED)
        blocks = builder.udiv(builder.add(all_turns, size(turns - 1)), size(turns))
        with cgutils.for_range(builder, blocks) as block:
            first = builder.mul(block.index, size(turns))
            left = builder.sub(all_turns, first)
            is_whole = builder.icmp_signed(">=", left, size(turns))
            sums = self._start_sums(halves)
            with cgutils.for_range(builder, builder.select(is_whole, size(turns), left)) as turn:
                index = builder.add(first, turn.index)
                codes, activations = self._begin_turn(rows, x, at, index, is_first=0 in halves)
                for step in range(UNROLLED):
                    self._add_pairs(sums, codes, step, activations)
                    if (step + 1) % steps == 0 and step + 1 < UNROLLED:
                        self._add_sums(sums)
                        sums = self._start_sums(halves)
            self._add_sums(sums)

    def _start_sums(self, halves: tuple[int, ...]) -> dict[tuple[int, int], list[ir.Value]]:
        """Variables for sums of 16 bits, by half and row."""
        sums = {
            (half, row): [cgutils.alloca_once(self._builder, SHORTS) for _ in range(2)]
            for half in halves
            for row in range(self._rows)
        }
        for total in chain.from_iterable(sums.values()):
            self._builder.store(ir.Constant(SHORTS, None), total)
        return sums

    def _add_sums(self, sums: dict[tuple[int, int], list[ir.Value]]) -> None:
        """Adds sums of 16 bits to the integer sums."""
        builder = self._builder
        for (half, row), parts in sums.items():
            pairs = add_neighbours(builder, [builder.load(part) for part in parts])
            total = self._ints[half][row]
            builder.store(builder.add(builder.load(total), pairs), total)

    def _add_pairs(
        self, sums: dict[tuple[int, int], list[ir.Value]], codes: ir.Value, step: int, x: ir.Value
    ) -> None:
        """Adds the products of 4 inputs."""
        builder = self._builder
        codes_of = {
            half: read_code_bytes(builder, codes, step, half, self._form.bits)
            for half in dict.fromkeys(half for half, _ in sums)
        }
        for (half, row), totals in sums.items():
            word = self._read_step(x, row, step)
            for total, of_outputs in zip(totals, codes_of[half], strict=True):
                builder.store(add_byte_products(builder, builder.load(total), of_outputs, word), total)
