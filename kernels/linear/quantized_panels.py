# mypy: disable-error-code="no-untyped-def,no-untyped-call,call-arg,var-annotated"
"""Products of many rows with quantized weights by AMX (see `amx_product`).

The integer sums are exact and the floating-point operations are those of `byte_dots`, in the same order, so a
row's bits are the same with and without AMX.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..common import amx
from ..common.jit import compiled
from ..common.llvm import I8, I32, outlined, prefetch_line, read, size, word, write
from ..common.numba_tools import pointer, shifted
from ..common.vectors import FLOATS, HALVES, LANES, WORDS, fma, splat, words
from .amx_product import BLOCK_ROWS, depth_of, multiply_block
from .byte_dots import TILE, VECTOR

LARGEST_GROUP = 128
"""The most inputs that share one scale, of weights or of activations."""

SMALLEST_GROUP = 32
"""AMX multiplies groups of at least this many inputs. Each group's sums must be scaled outside of AMX: the
smaller the groups, the more of the time that takes."""

PANEL = 128
"""Rows that are multiplied with a tile at a time. Their results stay in the first-level cache."""

_MOST_PARTS = LARGEST_GROUP // SMALLEST_GROUP
_BYTES = ir.VectorType(I8, VECTOR)

# Where the parts of a thread's memory begin. The results of a panel come first, and a copy of one row's.
_SUMS_AT = 4 * TILE * (PANEL + 1)
_TABLES_AT = _SUMS_AT + 4 * TILE * BLOCK_ROWS * _MOST_PARTS
_CODES_AT = _TABLES_AT + 2 * 4 * TILE * _MOST_PARTS
_SHAPES_AT = _CODES_AT + TILE * LARGEST_GROUP

PANEL_BYTES = _SHAPES_AT + amx.SHAPES_BYTES
"""Memory of a thread."""


def amx_multiplies(bits: int, group: int, zero: int | None) -> bool:
    """Whether the processor has AMX and `multiply_panel` takes such weights. zero: None if they have offsets.

    With offsets, AMX multiplies the codes. Otherwise it multiplies codes - zero, which must fit signed bytes.
    """
    fits = zero is None or (zero == 128 if bits == 8 else 0 <= zero <= 128)
    return fits and group >= SMALLEST_GROUP and amx.available("int8")


@compiled
def start_panels(memory, group):
    """Prepares the thread for `multiply_panel` with weights of this group."""
    amx.load_shapes(pointer(memory + _SHAPES_AT, np.uint8(0)), depth_of(group))


@compiled
def block_offset(row, index, groups, group_inputs):
    """Where the codes of a row's group of activations begin.

    The codes of BLOCK_ROWS rows and one group lie together, because AMX reads them together.
    """
    return ((row // BLOCK_ROWS * groups + index) * BLOCK_ROWS + row % BLOCK_ROWS) * group_inputs


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
    sums = pointer(memory + _SUMS_AT, np.int32(0))
    tables = pointer(memory + _TABLES_AT, np.float32(0))
    widened = pointer(memory + _CODES_AT, np.int8(0))
    for i in range(rows * TILE):
        out[i] = np.float32(0)
    for index in range(groups):
        weights = address + index * parts * group_bytes
        for part in range(parts):
            place = weights + part * group_bytes
            _widen_tables(place, has_offsets, tables, part)
            stored = pointer(place + head, np.uint8(0))
            if bits == 4:
                _widen_codes(stored, group // 4, arguments[9], shifted(widened, part * TILE * group))
            elif not has_offsets:
                _center_codes(stored, group // 2, shifted(widened, part * TILE * group))
        for row in range(0, rows, BLOCK_ROWS):
            at = block_offset(first + row, index, groups, parts * group)
            x = shifted(pointer(arguments[11], np.int8(0)), at)
            for part in range(parts):
                to = shifted(sums, part * BLOCK_ROWS * TILE)
                if bits == 8 and has_offsets:
                    codes = pointer(weights + part * group_bytes + head, np.uint8(0))
                    multiply_block(shifted(x, part * group), parts * group, codes, group // depth, depth, to)
                else:
                    signed = shifted(widened, part * TILE * group)
                    multiply_block(shifted(x, part * group), parts * group, signed, group // depth, depth, to)
            # Prefetch the codes that are multiplied next: the next rows of this group, or the first rows of
            # the next group.
            blocks = groups if row + BLOCK_ROWS < rows else 1 - row // BLOCK_ROWS * groups
            later = shifted(x, blocks * BLOCK_ROWS * parts * group)
            _add_scaled(
                min(BLOCK_ROWS, rows - row),
                parts,
                sums,
                shifted(pointer(arguments[13], sum_kind), ((first + row) * groups + index) * parts),
                groups * parts,
                tables,
                shifted(pointer(arguments[12], np.float32(0)), (first + row) * groups + index),
                groups,
                shifted(out, row * TILE),
                later,
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
def _widen_codes(typing, codes, steps, zero, target):
    """Writes `steps` vectors of 4-bit codes as pairs of vectors of signed 8-bit codes, less `zero`."""

    def generate(context, builder, signature, arguments):
        codes, steps, zero, target = arguments
        mask = words(0x0F0F0F0F)
        byte = builder.and_(builder.trunc(zero, I32), word(0xFF))
        zeros = builder.bitcast(splat(builder, builder.mul(byte, word(0x01010101)), WORDS), _BYTES)
        with cgutils.for_range(builder, steps) as loop:
            both = read(builder, builder.gep(codes, [builder.mul(loop.index, size(VECTOR))]), WORDS)
            place = builder.gep(target, [builder.mul(loop.index, size(2 * VECTOR))])
            low = builder.and_(both, mask)
            high = builder.and_(builder.lshr(both, words(4)), mask)
            for half, value in enumerate((low, high)):
                centered = builder.sub(builder.bitcast(value, _BYTES), zeros)
                write(builder, centered, builder.gep(place, [size(half * VECTOR)]))
        return context.get_dummy_value()

    i64 = types.int64
    return types.void(types.CPointer(types.uint8), i64, i64, types.CPointer(types.int8)), generate


@intrinsic
def _center_codes(typing, codes, vectors, target):
    """Writes vectors of 8-bit codes less 128."""

    def generate(context, builder, signature, arguments):
        codes, vectors, target = arguments
        with cgutils.for_range(builder, vectors) as loop:
            first = builder.mul(loop.index, size(VECTOR))
            value = builder.xor(read(builder, builder.gep(codes, [first]), WORDS), words(0x80808080))
            write(builder, value, builder.gep(target, [first]))
        return context.get_dummy_value()

    return types.void(types.CPointer(types.uint8), types.int64, types.CPointer(types.int8)), generate


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
def _add_scaled(typing, rows, parts, sums, starts, starts_row, tables, x_scales, x_scales_row, out, later):
    """Adds to the results of some rows the products of `parts` groups that share a scale of activations.

    sums: int32 [parts, BLOCK_ROWS, 32], of `multiply_block`; starts: the sums of activation codes, float32 if
    the weights have offsets and unused otherwise, `starts_row` from one row to the next; tables: float32
    [parts, 32] of scales or [parts, 2, 32] of scales and offsets; out: float32 [rows, 32]. The operations and
    their order are those of `tile_products`. The lines from `later` on are prefetched, two for each row.
    """
    offsets = starts.dtype == types.float32

    def generate(context, builder, signature, arguments):
        for count in range(1, _MOST_PARTS + 1):
            with builder.if_then(builder.icmp_signed("==", arguments[1], size(count))):
                outlined(builder, f"add_scaled_{count}_{offsets}", _emit_scaling(offsets, count), arguments)
        return context.get_dummy_value()

    i64, floats = types.int64, types.CPointer(types.float32)
    ints, codes = types.CPointer(types.int32), types.CPointer(types.int8)
    return types.void(i64, i64, ints, starts, i64, floats, floats, i64, floats, codes), generate


def _emit_scaling(offsets: bool, count: int):
    """The code of `_add_scaled` for `count` groups."""
    table_size = TILE * (2 if offsets else 1)

    def emit(builder, rows, parts, sums, starts, starts_row, tables, x_scales, x_scales_row, out, later):
        zero = ir.Constant(FLOATS, None)
        totals = [cgutils.alloca_once_value(builder, zero) for _ in range(2)]

        def add_group(start, of_row, table):
            for half, total in enumerate(totals):
                dots = read(builder, builder.gep(of_row, [size(half * LANES)]), WORDS)
                scale = read(builder, builder.gep(table, [size(half * LANES)]), FLOATS)
                value = fma(builder, builder.sitofp(dots, FLOATS), scale, builder.load(total))
                if offsets:
                    offset = read(builder, builder.gep(table, [size(TILE + half * LANES)]), FLOATS)
                    value = fma(builder, splat(builder, builder.load(start), FLOATS), offset, value)
                builder.store(value, total)

        with cgutils.for_range(builder, rows) as row:
            start = builder.gep(starts, [builder.mul(row.index, starts_row)])
            of_row = builder.gep(sums, [builder.mul(row.index, size(TILE))])
            line = builder.gep(later, [builder.mul(row.index, size(2 * VECTOR))])
            for place in (line, builder.gep(line, [size(VECTOR)])):
                prefetch_line(builder, place)
            for total in totals:
                builder.store(zero, total)
            for part in range(count):
                block = builder.gep(of_row, [size(part * BLOCK_ROWS * TILE)])
                table = builder.gep(tables, [size(part * table_size)])
                add_group(builder.gep(start, [size(part)]), block, table)
            scale = builder.load(builder.gep(x_scales, [builder.mul(row.index, x_scales_row)]))
            for half, total in enumerate(totals):
                first = builder.add(builder.mul(row.index, size(TILE)), size(half * LANES))
                place = builder.gep(out, [first])
                before = read(builder, place, FLOATS)
                value = fma(builder, builder.load(total), splat(builder, scale, FLOATS), before)
                write(builder, value, place)

    return emit
