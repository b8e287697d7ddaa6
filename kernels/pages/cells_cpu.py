"""The cells of the KV cache (see `cells`) in the CPU kernels.

A cell is a pointer to its elements: uint16 for bfloat16, int16 for float16, float32, or int8 with a scale.
A kernel is compiled once for each type of pointer to the cells.
"""

import numpy as np
from llvmlite import ir
from numba import types

from ..common.emits import ANY, BOOL, FLOAT, INT, VOID, emits
from ..common.jit import compiled_fast
from ..common.llvm import F32, I16, I32, read, size, word
from ..common.numba_tools import float_with_bits, load, store
from .cells import MAX_CODE, MIN_MAGNITUDE, WORD

LINE_BYTES = 64

_INFINITY = np.uint32(0x7F800000)


@emits(BOOL, ANY)
def is_scaled(builder, cell, kinds):
    """Whether cells of this type have a scale; a constant."""
    return ir.Constant(ir.IntType(1), _has_scale(kinds[0]))


@emits(INT, ANY)
def element_bytes(builder, cell, kinds):
    """The bytes of an element of cells of this type; a constant."""
    return size(kinds[0].dtype.bitwidth // 8)


@emits(INT, ANY)
def line_elements(builder, cell, kinds):
    """The elements in a cache line, or in two lines of float32; a constant."""
    return size(LINE_BYTES if _has_scale(kinds[0]) else LINE_BYTES // 2)


@emits(FLOAT, ANY, INT)
def read_scale(builder, cell, head_dim, kinds):
    """The factor of the loaded elements: 1 in cells without a scale."""
    if not _has_scale(kinds[0]):
        return ir.Constant(F32, 1.0)
    return builder.load(_scale_place(builder, cell, head_dim))


@emits(types.uint32, ANY, INT)
def bfloat16_at(builder, cell, index, kinds):
    """Element `index` as bfloat16, in the lower half of a word. int8 codes are exact in bfloat16."""
    value = builder.load(builder.gep(cell, [index]))
    if not _has_scale(kinds[0]):
        return builder.zext(value, I32)
    return builder.lshr(_float_bits(builder, builder.sext(value, I32)), word(16))


@emits(types.uint32, ANY, INT)
def pair_at(builder, cell, index, kinds):
    """Elements 2 · index and 2 · index + 1 as bfloat16, the first in the lower half of a word."""
    first = builder.gep(cell, [builder.shl(index, size(1))])
    if not _has_scale(kinds[0]):
        return read(builder, first, I32)
    # Shifts keep the elements in their words, so that LLVM vectorises without shuffles.
    codes = builder.zext(read(builder, first, I16), I32)
    low, high = (
        _float_bits(builder, builder.ashr(builder.shl(codes, word(unused)), word(24))) for unused in (24, 16)
    )
    return builder.or_(builder.lshr(low, word(16)), high)


@emits(VOID, ANY, INT, FLOAT)
def _write_scale(builder, cell, head_dim, scale):
    builder.store(scale, _scale_place(builder, cell, head_dim))


@emits(types.uint32, FLOAT)
def _magnitude(builder, value):
    """The bits of |value|, in the order of magnitudes: those of NaN are the largest."""
    return builder.and_(builder.bitcast(value, I32), word(0x7FFFFFFF))


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
    """Store the values at `source` in a cell. buffer: capacity for head_dim float32 values."""
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
