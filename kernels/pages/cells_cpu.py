"""The cells of the KV cache (see `cells`) in the CPU kernels.

A cell is a pointer to its elements: uint16 for bfloat16, int16 for float16, float32, or int8 with a scale.
A kernel is compiled once for each type of pointer to the cells.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from ..common.jit import compiled_fast
from ..common.llvm import F32, I16, I32, read, size, word
from ..common.numba_tools import float_with_bits, load, store
from .cells import MAX_CODE, MIN_MAGNITUDE, WORD

LINE_BYTES = 64

_INFINITY = np.uint32(0x7F800000)


@intrinsic
def is_scaled(typing, cell):
    """Whether cells of this type have a scale; a constant."""

    def generate(context, builder, signature, arguments):
        return ir.Constant(ir.IntType(1), _has_scale(cell))

    return types.boolean(cell), generate


@intrinsic
def element_bytes(typing, cell):
    """The bytes of an element of cells of this type; a constant."""

    def generate(context, builder, signature, arguments):
        return size(cell.dtype.bitwidth // 8)

    return types.int64(cell), generate


@intrinsic
def line_elements(typing, cell):
    """The elements in a cache line, or in two lines of float32; a constant."""
    count = LINE_BYTES if _has_scale(cell) else LINE_BYTES // 2

    def generate(context, builder, signature, arguments):
        return size(count)

    return types.int64(cell), generate


@intrinsic
def read_scale(typing, cell, head_dim):
    """The factor of the loaded elements: 1 in cells without a scale."""

    def generate(context, builder, signature, arguments):
        if not _has_scale(cell):
            return ir.Constant(F32, 1.0)
        return builder.load(_scale_place(builder, *arguments))

    return types.float32(cell, types.int64), generate


@intrinsic
def bfloat16_at(typing, cell, index):
    """Element `index` as bfloat16, in the lower half of a word. int8 codes are exact in bfloat16."""

    def generate(context, builder, signature, arguments):
        value = builder.load(builder.gep(arguments[0], [arguments[1]]))
        if not _has_scale(cell):
            return builder.zext(value, I32)
        return builder.lshr(_float_bits(builder, builder.sext(value, I32)), word(16))

    return types.uint32(cell, types.int64), generate


@intrinsic
def pair_at(typing, cell, index):
    """Elements 2 · index and 2 · index + 1 as bfloat16, the first in the lower half of a word."""

    def generate(context, builder, signature, arguments):
        first = builder.gep(arguments[0], [builder.shl(arguments[1], size(1))])
        if not _has_scale(cell):
            return read(builder, first, I32)
        # Shifts keep the elements in their words, so that LLVM vectorises without shuffles.
        codes = builder.zext(read(builder, first, I16), I32)
        low, high = (
            _float_bits(builder, builder.ashr(builder.shl(codes, word(unused)), word(24)))
            for unused in (24, 16)
        )
        return builder.or_(builder.lshr(low, word(16)), high)

    return types.uint32(cell, types.int64), generate


@intrinsic
def _write_scale(typing, cell, head_dim, scale):
    def generate(context, builder, signature, arguments):
        builder.store(arguments[2], _scale_place(builder, arguments[0], arguments[1]))
        return context.get_dummy_value()

    return types.void(cell, types.int64, types.float32), generate


@intrinsic
def _magnitude(typing, value):
    """The bits of |value|, in the order of magnitudes: those of NaN are the largest."""

    def generate(context, builder, signature, arguments):
        return builder.and_(builder.bitcast(arguments[0], I32), word(0x7FFFFFFF))

    return types.uint32(types.float32), generate


@compiled_fast
def write_cell(cell, head_dim, values):
    """Store float32 values in a cell with a scale, rounded to nearest even."""
    magnitude = np.uint32(0)
    for i in range(head_dim):
        magnitude = max(magnitude, _magnitude(values[i]))
    largest = float_with_bits(magnitude)
    if magnitude < _INFINITY and largest >= np.float32(MIN_MAGNITUDE):
        factor = np.float32(MAX_CODE) / largest
        for i in range(head_dim):
            store(cell, i, values[i] * factor)
        _write_scale(cell, head_dim, largest / np.float32(MAX_CODE))
        return
    for i in range(head_dim):
        store(cell, i, np.float32(0))
    _write_scale(cell, head_dim, np.float32(np.nan if magnitude >= _INFINITY else 0.0))


@compiled_fast
def copy_to_cell(cell, head_dim, source, buffer):
    """Store the values at `source`; buffer: capacity for head_dim float32 values."""
    if not is_scaled(cell):
        for i in range(head_dim):
            cell[i] = source[i]
        return
    for i in range(head_dim):
        buffer[i] = load(source, i)
    write_cell(cell, head_dim, buffer)


def read_scales(
    builder: ir.IRBuilder, cells: list[ir.Value], kind: types.CPointer, head_dim: ir.Value
) -> ir.Value | None:
    """The vector of the cells' scales; None if their type has none."""
    if not _has_scale(kind):
        return None
    scales = ir.Constant(ir.VectorType(F32, len(cells)), ir.Undefined)
    for i, cell in enumerate(cells):
        scales = builder.insert_element(scales, builder.load(_scale_place(builder, cell, head_dim)), word(i))
    return scales


def _has_scale(cell: types.CPointer) -> bool:
    return bool(cell.dtype == types.int8)


def _scale_place(builder: ir.IRBuilder, cell: ir.Value, head_dim: ir.Value) -> ir.Value:
    up = builder.add(head_dim, size(WORD - 1))
    place = builder.gep(cell, [builder.and_(up, size(-WORD))])
    return builder.bitcast(place, F32.as_pointer())


def _float_bits(builder: ir.IRBuilder, code: ir.Value) -> ir.Value:
    return builder.bitcast(builder.sitofp(code, F32), I32)
