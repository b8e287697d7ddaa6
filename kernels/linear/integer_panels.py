"""Products of many rows with weights quantized by groups of GROUP inputs, by AMX-INT8, the matrix
instructions of x86 for bytes.

One instruction multiplies the codes of 16 rows of activations and of 16 outputs, for 64 inputs, and adds the
products to a register of 16 × 16 int32. The vectors of 8-bit codes that `byte_dots` describes have the layout
that AMX needs. The integer sums are exact and the floating-point operations are those of `tile_products`, in
the same order, so a row's bits are the same with and without AMX.
"""

from functools import partial

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from ..common import amx
from ..common.amx import LEFT, RIGHT, SUMS, TILE_ROWS, instruction
from ..common.emits import ANY, FLOAT, INT, TO_BYTES, TO_CODES, TO_FLOATS, VOID, emits
from ..common.jit import compiled
from ..common.llvm import I8, I32, call_outlined, prefetch_line, read, size, word, write
from ..common.numba_tools import pointer, shift
from ..common.vectors import FLOATS, LANES, WORDS, fma, read_vectors, splat, words
from .byte_dots import TILE, VECTOR, read_codes, read_halves

BLOCK_ROWS = 32
"""Rows of activations of `multiply_block`: those of two tile registers."""

DEPTH = 64
"""inputs of each row that one instruction multiplies"""

GROUP = 128
"""The number of inputs in a group. Each group's sums are stored and scaled outside of AMX. With smaller
groups that takes so long that multiplying bfloat16 (`integer_tiles.widen_groups`) is faster."""

PANEL = 128
"""Rows that are multiplied with a tile at a time. Their results stay in the first-level cache."""

_BYTES = ir.VectorType(I8, VECTOR)

# Where the parts of a thread's memory begin. The results of a panel come first, and a copy of one row's.
_SUMS_AT = 4 * TILE * (PANEL + 1)
_TABLES_AT = _SUMS_AT + 4 * TILE * BLOCK_ROWS
_CODES_AT = _TABLES_AT + 2 * 4 * TILE
_SHAPES_AT = _CODES_AT + TILE * GROUP

PANEL_BYTES = _SHAPES_AT + amx.SHAPES_BYTES
"""Memory of a thread."""


@emits(VOID, TO_CODES, INT, ANY, INT, types.CPointer(types.int32))
def multiply_block(builder, x, x_row, codes, steps, sums, kinds):
    """sums = x · codes for BLOCK_ROWS rows, one group of `steps` × DEPTH inputs and 32 outputs.

    x: int8, `x_row` bytes from one row to the next; codes: int8 or uint8, in the layout of 8-bit codes in
    `byte_dots`; sums: int32 [BLOCK_ROWS, 32]
    """
    multiplication = "tdpbssd" if kinds[2].dtype == types.int8 else "tdpbsud"
    row_bytes = size(2 * VECTOR)
    lower = builder.mul(x_row, size(TILE_ROWS))
    for tile in (*SUMS[0], *SUMS[1]):
        instruction(builder, "tilezero", tile)
    with cgutils.for_range(builder, steps) as loop:
        first = builder.mul(loop.index, size(DEPTH))
        rows = builder.gep(x, [first])
        place = builder.gep(codes, [builder.mul(first, size(2 * VECTOR // 4))])
        instruction(builder, "tileloadd64", RIGHT[0], place, row_bytes)
        instruction(builder, "tileloadd64", LEFT[0], rows, x_row)
        instruction(builder, "tileloadd64", RIGHT[1], builder.gep(place, [size(VECTOR)]), row_bytes)
        instruction(builder, "tileloadd64", LEFT[1], builder.gep(rows, [lower]), x_row)
        for half in range(2):
            for tile, of_outputs in zip(SUMS[half], RIGHT, strict=True):
                instruction(builder, multiplication, tile, LEFT[half], of_outputs)
    for half in range(2):
        for vector in range(2):
            place = builder.gep(sums, [size(half * TILE_ROWS * TILE + vector * LANES)])
            instruction(builder, "tilestored64", SUMS[half][vector], place, row_bytes)


def amx_multiplies(bits: int, group: int, zero: int | None) -> bool:
    """Whether `multiply_panel` takes such weights. zero: None if they have offsets.

    With offsets, AMX multiplies the codes. Otherwise it multiplies codes - zero, which must fit signed bytes.
    """
    return group == GROUP and (zero is None or (zero == 128 if bits == 8 else 0 <= zero <= 128))


@compiled
def start_panels(memory):
    """Prepares the thread for `multiply_panel`."""
    amx.load_shapes(pointer(memory + _SHAPES_AT, np.uint8(0)))


@compiled
def block_offset(row, index, groups):
    """Where the codes of a row's group of activations begin.

    The codes of BLOCK_ROWS rows and one group lie together, because AMX reads them together.
    """
    return ((row // BLOCK_ROWS * groups + index) * BLOCK_ROWS + row % BLOCK_ROWS) * GROUP


@compiled
def multiply_panel(arguments, address, bits, has_offsets, sum_kind, memory, first, rows):
    """Multiplies up to PANEL rows from row `first` on with the tile at `address`.

    arguments: of `integer_cpu`; sum_kind: of the activations' sums, as in `tile_products.add_products`
    """
    groups = arguments[6] // GROUP
    head = VECTOR * (2 if has_offsets else 1)
    group_bytes = head + TILE * GROUP * bits // 8
    out = pointer(memory, np.float32(0))
    sums = pointer(memory + _SUMS_AT, np.int32(0))
    tables = pointer(memory + _TABLES_AT, np.float32(0))
    widened = pointer(memory + _CODES_AT, np.int8(0))
    for i in range(rows * TILE):
        out[i] = np.float32(0)
    for index in range(groups):
        place = address + index * group_bytes
        _widen_halves(pointer(place, np.uint8(0)), tables)
        if has_offsets:
            _widen_halves(pointer(place + VECTOR, np.uint8(0)), shift(tables, TILE))
        stored = pointer(place + head, np.uint8(0))
        if bits == 4:
            _widen_codes(stored, GROUP // 4, arguments[9], widened)
        elif not has_offsets:
            _center_codes(stored, GROUP // 2, widened)
        for row in range(0, rows, BLOCK_ROWS):
            x = shift(pointer(arguments[11], np.int8(0)), block_offset(first + row, index, groups))
            if bits == 8 and has_offsets:
                multiply_block(x, GROUP, stored, GROUP // DEPTH, sums)
            else:
                multiply_block(x, GROUP, widened, GROUP // DEPTH, sums)
            # Prefetch the codes that are multiplied next: the next rows of this group, or the first rows of
            # the next group.
            blocks = groups if row + BLOCK_ROWS < rows else 1 - row // BLOCK_ROWS * groups
            start = (first + row) * groups + index
            _add_scaled(
                min(BLOCK_ROWS, rows - row),
                sums,
                shift(pointer(arguments[13], sum_kind), start),
                tables,
                shift(pointer(arguments[12], np.float32(0)), start),
                groups,
                shift(out, row * TILE),
                shift(x, blocks * BLOCK_ROWS * GROUP),
            )


@emits(VOID, TO_BYTES, INT, INT, TO_CODES)
def _widen_codes(builder, codes, steps, zero, target):
    """Writes `steps` vectors of 4-bit codes as pairs of vectors of signed 8-bit codes, less `zero`."""
    byte = builder.and_(builder.trunc(zero, I32), word(0xFF))
    zeros = builder.bitcast(splat(builder, builder.mul(byte, word(0x01010101)), WORDS), _BYTES)
    with cgutils.for_range(builder, steps) as loop:
        source = builder.gep(codes, [builder.mul(loop.index, size(VECTOR))])
        place = builder.gep(target, [builder.mul(loop.index, size(2 * VECTOR))])
        for half, value in enumerate(read_codes(builder, source, 0, 4)):
            centered = builder.sub(builder.bitcast(value, _BYTES), zeros)
            write(builder, centered, builder.gep(place, [size(half * VECTOR)]))


@emits(VOID, TO_BYTES, INT, TO_CODES)
def _center_codes(builder, codes, vectors, target):
    """Writes vectors of 8-bit codes less 128."""
    with cgutils.for_range(builder, vectors) as loop:
        first = builder.mul(loop.index, size(VECTOR))
        value = builder.xor(read(builder, builder.gep(codes, [first]), WORDS), words(0x80808080))
        write(builder, value, builder.gep(target, [first]))


@emits(VOID, TO_BYTES, TO_FLOATS)
def _widen_halves(builder, halves, target):
    """Writes 32 float16 as float32."""
    for half in range(2):
        write(builder, read_halves(builder, halves, half), builder.gep(target, [size(half * LANES)]))


@emits(VOID, INT, types.CPointer(types.int32), ANY, TO_FLOATS, TO_FLOATS, INT, TO_FLOATS, TO_CODES)
def _add_scaled(builder, rows, sums, starts, tables, x_scales, from_row, out, later, kinds):
    """Adds a group's products to the results of some rows.

    sums: int32 [BLOCK_ROWS, 32], of `multiply_block`; starts: the sums of activation codes, float32 if the
    weights have offsets and unused otherwise; tables: float32 [32] of scales or [2, 32] of scales and
    offsets; starts and x_scales, of activations, lie `from_row` apart from one row to the next; out: float32
    [rows, 32]. The operations and their order are those of `add_products`. The lines from `later` on are
    prefetched, two for each row.
    """
    has_offsets = kinds[2].dtype == FLOAT
    arguments = rows, sums, starts, tables, x_scales, from_row, out, later
    call_outlined(builder, f"add_scaled_{has_offsets}", partial(_emit_scaling, has_offsets), arguments)


def _emit_scaling(
    has_offsets: bool,
    builder: ir.IRBuilder,
    rows: ir.Value,
    sums: ir.Value,
    starts: ir.Value,
    tables: ir.Value,
    x_scales: ir.Value,
    from_row: ir.Value,
    out: ir.Value,
    later: ir.Value,
) -> None:
    """The code of `_add_scaled`. It reads the tables once, not for each row."""
    table = read_vectors(builder, tables, FLOATS, 4 if has_offsets else 2)
    with cgutils.for_range(builder, rows) as row:
        first = builder.mul(row.index, size(TILE))
        line = builder.gep(later, [builder.mul(row.index, size(2 * VECTOR))])
        for place in (line, builder.gep(line, [size(VECTOR)])):
            prefetch_line(builder, place)
        at = builder.mul(row.index, from_row)
        scale = splat(builder, builder.load(builder.gep(x_scales, [at])), FLOATS)
        for half in range(2):
            of_half = builder.add(first, size(half * LANES))
            dots = builder.sitofp(read(builder, builder.gep(sums, [of_half]), WORDS), FLOATS)
            total = fma(builder, dots, table[half], ir.Constant(FLOATS, None))
            if has_offsets:
                start = splat(builder, builder.load(builder.gep(starts, [at])), FLOATS)
                total = fma(builder, start, table[2 + half], total)
            place = builder.gep(out, [of_half])
            write(builder, fma(builder, total, scale, read(builder, place, FLOATS)), place)
