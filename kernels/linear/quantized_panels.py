# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,var-annotated"
"""Products of many rows with quantized weights by the matrix unit (see `matrix_unit`).

The integer sums are exact and the floating-point operations are those of `byte_dots`, in the same order, so a
row's bits are the same with and without the unit.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..common.jit import compiled
from ..common.llvm import outlined, read, size, write
from ..common.numba_tools import pointer, shifted
from ..common.vectors import FLOATS, HALVES, LANES, WORDS, fma, splat, words
from .byte_dots import TILE, VECTOR
from .matrix_unit import BLOCK_ROWS, SHAPES_BYTES, depth_of, load_shapes, multiply_block

LARGEST_GROUP = 128
"""The most inputs that share one scale, of weights or of activations."""

PANEL = 128
"""Rows that are multiplied with a tile at a time. Their results stay in the first-level cache."""

_MOST_PARTS = LARGEST_GROUP // 16
_SUMS = 4 * TILE * (PANEL + 1)  # after the results of a panel and a copy of one row's
_BLOCK_BYTES = 4 * TILE * BLOCK_ROWS
_BLOCKS_BYTES = _BLOCK_BYTES * _MOST_PARTS
_TABLES = _SUMS + 2 * _BLOCKS_BYTES
_CODES = _TABLES + 2 * 4 * TILE * _MOST_PARTS
_SHAPES = _CODES + TILE * LARGEST_GROUP

PANEL_BYTES = _SHAPES + SHAPES_BYTES
"""Memory of a thread: the results of a panel first, float32 [rows, 32]."""


@compiled
def start_panels(memory, group):
    """Prepares the thread for `multiply_panel` with weights of this group."""
    load_shapes(pointer(memory + _SHAPES, np.uint8(0)), depth_of(group))


@compiled
def block_offset(row, index, groups, inputs):
    """Where the codes of a row's activation group begin, which has `inputs` inputs.

    The unit reads the codes of BLOCK_ROWS rows and one group from neighbouring addresses.
    """
    return ((row // BLOCK_ROWS * groups + index) * BLOCK_ROWS + row % BLOCK_ROWS) * inputs


@compiled
def multiply_panel(arguments, address, bits, has_offsets, sum_kind, memory, first, rows):
    """Multiplies up to PANEL rows from row `first` on with the tile at `address`.

    arguments: of `quantized_cpu`; sum_kind: of the activations' sums, as in `byte_dots.tile_products`
    """
    inputs, group, parts = arguments[6], arguments[7], arguments[8]
    groups, depth = inputs // (group * parts), depth_of(group)
    head = VECTOR * (2 if has_offsets else 1)
    group_bytes = head + TILE * group * bits // 8
    out = pointer(memory, np.float32(0))
    tables = pointer(memory + _TABLES, np.float32(0))
    for i in range(rows * TILE):
        out[i] = np.float32(0)
    for index in range(groups):
        codes = address + index * parts * group_bytes + head
        part_bytes = group_bytes
        for part in range(parts):
            _widen_tables(codes - head + part * group_bytes, has_offsets, tables, part)
        if bits == 4:
            for part in range(parts):
                stored = pointer(codes + part * group_bytes, np.uint8(0))
                _widen_codes(stored, group // 4, pointer(memory + _CODES + part * TILE * group, np.uint8(0)))
            codes, part_bytes = memory + _CODES, TILE * group
        for row in range(0, rows + BLOCK_ROWS, BLOCK_ROWS):
            # The unit multiplies a block while the sums of the block before are scaled.
            turn = row // BLOCK_ROWS % 2
            if row < rows:
                x = arguments[11] + block_offset(first + row, index, groups, parts * group)
                sums = memory + _SUMS + turn * _BLOCKS_BYTES
                for part in range(parts):
                    multiply_block(
                        pointer(x + part * group, np.int8(0)),
                        parts * group,
                        pointer(codes + part * part_bytes, np.uint8(0)),
                        group // depth,
                        depth,
                        pointer(sums + part * _BLOCK_BYTES, np.int32(0)),
                    )
            if row > 0:
                begin = row - BLOCK_ROWS
                at = (first + begin) * groups + index
                _add_scaled(
                    min(BLOCK_ROWS, rows - begin),
                    parts,
                    pointer(memory + _SUMS + (1 - turn) * _BLOCKS_BYTES, np.int32(0)),
                    shifted(pointer(arguments[13], sum_kind), at * parts),
                    groups * parts,
                    tables,
                    shifted(pointer(arguments[12], np.float32(0)), at),
                    groups,
                    shifted(out, begin * TILE),
                )


@compiled
def _widen_tables(address, has_offsets, tables, part):
    """Writes the scales of a group, and its offsets, as float32."""
    if has_offsets:
        to = shifted(tables, 2 * part * TILE)
        _widen_halves(pointer(address + VECTOR, np.uint8(0)), shifted(to, TILE))
    else:
        to = shifted(tables, part * TILE)
    _widen_halves(pointer(address, np.uint8(0)), to)


@intrinsic
def _widen_codes(typing, codes, steps, target):
    """Writes `steps` vectors of 4-bit codes as pairs of vectors of 8-bit codes."""

    def generate(context, builder, signature, arguments):
        codes, steps, target = arguments
        mask = words(0x0F0F0F0F)
        with cgutils.for_range(builder, steps) as loop:
            both = read(builder, builder.gep(codes, [builder.mul(loop.index, size(VECTOR))]), WORDS)
            place = builder.gep(target, [builder.mul(loop.index, size(2 * VECTOR))])
            write(builder, builder.and_(both, mask), place)
            high = builder.and_(builder.lshr(both, words(4)), mask)
            write(builder, high, builder.gep(place, [size(VECTOR)]))
        return context.get_dummy_value()

    bytes_ = types.CPointer(types.uint8)
    return types.void(bytes_, types.int64, bytes_), generate


@intrinsic
def _widen_halves(typing, halves, target):
    """Writes 32 float16 as float32."""

    def generate(context, builder, signature, arguments):
        halves, target = arguments
        for start in (0, LANES):
            value = builder.fpext(read(builder, builder.gep(halves, [size(2 * start)]), HALVES), FLOATS)
            write(builder, value, builder.gep(target, [size(start)]))
        return context.get_dummy_value()

    return types.void(types.CPointer(types.uint8), types.CPointer(types.float32)), generate


@intrinsic
def _add_scaled(typing, rows, parts, sums, starts, starts_row, tables, x_scales, x_scales_row, out):
    """Adds to the results of some rows the products of `parts` groups that share a scale of activations.

    sums: int32 [parts, BLOCK_ROWS, 32], of `multiply_block`; starts: the sums of activation codes, as in
    `byte_dots.tile_products`, `starts_row` from one row to the next; tables: float32 [parts, 32] of scales or
    [parts, 2, 32] of scales and offsets; out: float32 [rows, 32]. The operations and their order are those of
    `tile_products`.
    """
    offsets = starts.dtype == types.float32

    def generate(context, builder, signature, arguments):
        with builder.if_else(builder.icmp_signed("==", arguments[1], size(1))) as (one, many):
            with one:
                outlined(builder, f"add_scaled_group_{offsets}", _emit_scaling(offsets, True), arguments)
            with many:
                outlined(builder, f"add_scaled_groups_{offsets}", _emit_scaling(offsets, False), arguments)
        return context.get_dummy_value()

    i64, floats = types.int64, types.CPointer(types.float32)
    ints = types.CPointer(types.int32)
    return types.void(i64, i64, ints, starts, i64, floats, floats, i64, floats), generate


def _emit_scaling(offsets: bool, one: bool):
    """The code of `_add_scaled` for one group, or for any number."""
    table_size = TILE * (2 if offsets else 1)

    def emit(builder, rows, parts, sums, starts, starts_row, tables, x_scales, x_scales_row, out):
        zero = ir.Constant(FLOATS, None)
        totals = [cgutils.alloca_once_value(builder, zero) for _ in range(2)]

        def add_group(start, of_row, table):
            word = builder.load(start)
            for half, total in enumerate(totals):
                dots = read(builder, builder.gep(of_row, [size(half * LANES)]), WORDS)
                if not offsets:
                    dots = builder.add(dots, splat(builder, word, WORDS))
                scale = read(builder, builder.gep(table, [size(half * LANES)]), FLOATS)
                value = fma(builder, builder.sitofp(dots, FLOATS), scale, builder.load(total))
                if offsets:
                    offset = read(builder, builder.gep(table, [size(TILE + half * LANES)]), FLOATS)
                    value = fma(builder, splat(builder, word, FLOATS), offset, value)
                builder.store(value, total)

        with cgutils.for_range(builder, rows) as row:
            start = builder.gep(starts, [builder.mul(row.index, starts_row)])
            of_row = builder.gep(sums, [builder.mul(row.index, size(TILE))])
            for total in totals:
                builder.store(zero, total)
            if one:
                add_group(start, of_row, tables)
            else:
                with cgutils.for_range(builder, parts) as part:
                    block = builder.gep(of_row, [builder.mul(part.index, size(BLOCK_ROWS * TILE))])
                    table = builder.gep(tables, [builder.mul(part.index, size(table_size))])
                    add_group(builder.gep(start, [part.index]), block, table)
            scale = builder.load(builder.gep(x_scales, [builder.mul(row.index, x_scales_row)]))
            for half, total in enumerate(totals):
                first = builder.add(builder.mul(row.index, size(TILE)), size(half * LANES))
                place = builder.gep(out, [first])
                before = read(builder, place, FLOATS)
                value = fma(builder, builder.load(total), splat(builder, scale, FLOATS), before)
                write(builder, value, place)

    return emit
