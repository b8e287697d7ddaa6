"""LLVM code for AMX, the matrix instructions of x86, which have eight registers of 16 rows of 64 bytes."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .jit import compiled
from .llvm import I8, I64
from .numba_tools import has_feature

TILE_ROWS = 16
ROW_BYTES = 64
SHAPES_BYTES = 64

SUMS = ((0, 1), (2, 3))
"""Registers of 16 × 16 sums, for two halves of the rows and of the columns of a product."""
LEFT, RIGHT = (4, 5), (6, 7)
"""Registers for two halves of the left matrix's rows, and for two halves of the right matrix's columns."""


@cache
def is_compiled() -> bool:
    """Whether the processor that numba compiles for has AMX for bytes and for bfloat16, and AVX512-BF16."""
    return all(map(has_feature, ("amx-int8", "amx-bf16", "avx512bf16")))


@cache
def available() -> bool:
    """Whether kernels are compiled for AMX and the system lets this process use it."""
    return is_compiled() and torch.cpu._init_amx()


@compiled
def load_shapes(shapes):
    """Sets the shapes of the registers: all have TILE_ROWS rows of ROW_BYTES.

    shapes: SHAPES_BYTES of memory
    """
    for index in range(SHAPES_BYTES):
        shapes[index] = np.uint8(0)
    shapes[0] = np.uint8(1)
    for tile in range(8):
        shapes[16 + 2 * tile] = np.uint8(ROW_BYTES)
        shapes[48 + tile] = np.uint8(TILE_ROWS)
    _configure(shapes)


@intrinsic
def _configure(typing, shapes):
    def generate(context, builder, signature, arguments):
        instruction(builder, "ldtilecfg", arguments[0])
        return context.get_dummy_value()

    return types.void(shapes), generate


@intrinsic
def release_tiles(typing):
    """Frees the tiles, so that the system doesn't save them when it switches threads."""

    def generate(context, builder, signature, arguments):
        instruction(builder, "tilerelease")
        return context.get_dummy_value()

    return types.void(), generate


def instruction(builder: ir.IRBuilder, name: str, *operands: int | ir.Value) -> None:
    """Emits an instruction of AMX, or nothing for a processor without it. An int names a tile register."""
    if not is_compiled():
        return
    values = [ir.Constant(I8, each) if isinstance(each, int) else each for each in operands]
    values = [
        builder.bitcast(each, I8.as_pointer()) if isinstance(each.type, ir.PointerType) else each
        for each in values
    ]
    assert all(each.type in (I8, I64, I8.as_pointer()) for each in values)
    kind = ir.FunctionType(ir.VoidType(), [each.type for each in values])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{name}"), values)
