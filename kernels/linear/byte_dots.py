"""The layout of tiles of quantized weights, and products of bytes.

A tile holds the weights of 32 outputs as one stream of 64-byte vectors. For each group of inputs: the scales
of the outputs (float16), their offsets (float16, only if the format has them), then the codes. With factors,
FACTOR_INPUTS inputs follow each other in this way: the float16 factors of the scales, and of the offsets; for
each group the scales, and the offsets, as signed bytes; then the codes of all groups.

A 32-bit lane of a vector of codes belongs to one output and holds its codes of 4 inputs, which are a step.
8 bits: a vector for outputs 0–15, then one for 16–31. 4 bits: one vector, with outputs 0–15 in the low halves
of its bytes. 5 and 6 bits: for UNROLLED steps the low 4 bits of each, then the vectors of their high bits,
whose bytes hold these of one place of all steps: first step and outputs 0–15 in the lowest bits, then 16–31,
then the next step.
"""

from __future__ import annotations

import platform
from typing import NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils

from ..common.emits import ANY, BOOL, INT, emits
from ..common.jit import compiled
from ..common.llvm import I8, I16, I32, read, size, word
from ..common.numba_tools import has_feature
from ..common.vectors import FLOATS, HALVES, LANES, WORDS, join, read_vectors, split
from .coded_weight import FACTOR_INPUTS

TILE = 2 * LANES
"""outputs of a tile"""
VECTOR = 64  # bytes
UNROLLED = 4
"""Steps of 4 inputs in a turn of the innermost loop: each group has a multiple of 16 inputs."""
SHORTS = ir.VectorType(I16, 16)
_FACTOR_STEPS = FACTOR_INPUTS // 4
_BYTES, _HALF_WORDS = ir.VectorType(I8, 32), ir.VectorType(I32, 8)


class TileFormat(NamedTuple):
    bits: int
    """of a code"""
    has_factors: bool


FORMATS = {
    types.uint16: TileFormat(4, False),
    types.uint32: TileFormat(8, False),
    types.int16: TileFormat(4, True),
    types.int32: TileFormat(5, True),
    types.int64: TileFormat(6, True),
}
"""by the type that stands for a format in compiled functions, which are compiled once for each type"""


@compiled
def block_layout(bits, group, tables, has_factors):
    """Returns the bytes of a block, how many of them come before its first codes, and its inputs.

    A block is what a tile has for a group, or with factors for FACTOR_INPUTS inputs. tables: 2 with offsets,
    otherwise 1.
    """
    inputs, head = group, VECTOR * tables
    if has_factors:
        inputs, head = FACTOR_INPUTS, (VECTOR + TILE * FACTOR_INPUTS // group) * tables
    return head + TILE * inputs * bits // 8, head, inputs


@emits(INT, ANY, INT, INT, BOOL)
def tile_bytes(builder, stored, inputs, group, has_offsets, kinds):
    """The bytes of a tile. stored: of the type that stands for the format in FORMATS"""
    form = FORMATS[kinds[0]]
    tables = builder.add(builder.zext(has_offsets, inputs.type), size(1))
    codes = builder.mul(inputs, size(TILE * form.bits // 8))
    groups = builder.udiv(inputs, group)
    if not form.has_factors:
        return builder.add(codes, builder.mul(groups, builder.mul(tables, size(VECTOR))))
    factors = builder.mul(builder.udiv(inputs, size(FACTOR_INPUTS)), size(VECTOR))
    heads = builder.add(factors, builder.mul(groups, size(TILE)))
    return builder.add(codes, builder.mul(heads, tables))


class Blocks(NamedTuple):
    """Where the blocks of a tile are, and the groups of 4 × `steps` inputs in them: see `block_layout`."""

    steps: ir.Value
    has_factors: bool
    size: ir.Value
    """bytes of a block"""
    head: int
    """bytes before the scales of the first group: the factors, if there are any"""
    scales: int
    """bytes of a group's scales and offsets"""
    codes: ir.Value
    """bytes of a group's codes"""
    groups: ir.Value
    """of a block"""

    @classmethod
    def of(cls, builder: ir.IRBuilder, steps: ir.Value, form: TileFormat, tables: int) -> Blocks:
        """tables: 2 with offsets, otherwise 1"""
        codes = builder.udiv(builder.mul(steps, size(VECTOR * form.bits)), size(UNROLLED))
        head, scales, groups = 0, tables * VECTOR, size(1)
        if form.has_factors:
            head, scales, groups = tables * VECTOR, tables * TILE, builder.udiv(size(_FACTOR_STEPS), steps)
        whole = builder.add(size(head), builder.mul(groups, builder.add(codes, size(scales))))
        return cls(steps, form.has_factors, whole, head, scales, codes, groups)

    def find_group(self, builder: ir.IRBuilder, index: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        """At which bytes of the tile the block of a group begins, the group's scales and its codes."""
        block, within = index, size(0)
        if self.has_factors:
            block = builder.udiv(builder.mul(index, self.steps), size(_FACTOR_STEPS))
            within = builder.sub(index, builder.mul(block, self.groups))
        start = builder.mul(block, self.size)
        first = builder.add(start, size(self.head))
        scales = builder.add(first, builder.mul(within, size(self.scales)))
        codes = builder.add(first, builder.mul(self.groups, size(self.scales)))
        return start, scales, builder.add(codes, builder.mul(within, self.codes))


def available() -> bool:
    """Whether the processor converts float16 and has fused multiply-adds: numba has no library for them."""
    return platform.machine() not in ("x86_64", "AMD64") or (has_feature("f16c") and has_feature("fma"))


def dot_width() -> int:
    """Bits of the widest vector whose bytes the processor multiplies and adds in one instruction, or 0."""
    if has_feature("avx512vnni"):
        return 512
    return 256 if has_feature("avxvnni") else 0


def adds_pairs_of_bytes(bits: int) -> bool:
    """Whether codes of this many bits are multiplied by `add_byte_products`."""
    return bits < 8 and dot_width() == 0 and has_feature("avx2")


def read_codes(builder: ir.IRBuilder, place: ir.Value, step: int, bits: int) -> list[ir.Value]:
    """Two vectors of codes, one byte each: those of outputs 0–15 and those of outputs 16–31, for a step of
    the UNROLLED ones at a place."""
    if bits == 8:
        start = builder.gep(place, [size(2 * VECTOR * step)])
        return read_vectors(builder, builder.bitcast(start, I32.as_pointer()), WORDS, 2)
    return [_read_small_codes(builder, place, step, half, bits, 0, WORDS) for half in (0, 1)]


def read_code_bytes(
    builder: ir.IRBuilder, place: ir.Value, step: int, half: int, bits: int
) -> list[ir.Value]:
    """As `read_codes`, for codes of 4 to 6 bits and 16 outputs: two vectors of SHORTS, 8 outputs each."""
    return [_read_small_codes(builder, place, step, half, bits, at, SHORTS) for at in (0, VECTOR // 2)]


def _read_small_codes(
    builder: ir.IRBuilder, place: ir.Value, step: int, half: int, bits: int, at: int, kind: ir.VectorType
) -> ir.Value:
    """The codes of 4 to 6 bits from byte `at` of their vectors on, one byte each."""
    low = read(builder, builder.gep(place, [size(VECTOR * step + at)]), kind)
    codes = _take_bits(builder, low, 4 * half, 0x0F)
    if bits == 4:
        return codes
    field = (2 * step + half) * (bits - 4)
    vector = VECTOR * (UNROLLED + field // 8)
    high = read(builder, builder.gep(place, [size(vector + at)]), kind)
    return builder.or_(codes, _take_bits(builder, high, field % 8 - 4, (1 << bits) - 16))


def _take_bits(builder: ir.IRBuilder, value: ir.Value, shift: int, mask: int) -> ir.Value:
    """These bits of all bytes, after they are shifted to the right, or to the left if `shift` is negative."""
    lane = value.type.element.width
    if shift:
        move = builder.lshr if shift > 0 else builder.shl
        value = move(value, ir.Constant(value.type, [abs(shift)] * value.type.count))
    whole = int.from_bytes(bytes([mask] * (lane // 8)), "little")
    return builder.and_(value, ir.Constant(value.type, [whole] * value.type.count))


def read_halves(builder: ir.IRBuilder, place: ir.Value, number: int) -> ir.Value:
    """Reads 16 values of float16, number 16 × `number` and those after it, and converts them to float32."""
    halves = read(builder, builder.gep(place, [size(number * VECTOR // 2)]), HALVES)
    return builder.fpext(halves, FLOATS)


def read_bytes(builder: ir.IRBuilder, place: ir.Value, number: int) -> ir.Value:
    """Reads 16 signed bytes, number 16 × `number` and those after it, and converts them to WORDS."""
    stored = read(builder, builder.gep(place, [size(number * LANES)]), ir.VectorType(I8, LANES))
    return builder.sext(stored, WORDS)


def dot(builder: ir.IRBuilder, total: ir.Value, codes: ir.Value, activations: ir.Value) -> ir.Value:
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
    """Computes `dot` from products of 16-bit integers and adds neighbours (`vpmaddwd` on AVX2)."""
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


def add_byte_products(
    builder: ir.IRBuilder, total: ir.Value, codes: ir.Value, activations: ir.Value
) -> ir.Value:
    """Adds the products of 8 outputs' unsigned codes and of 4 signed activations, a word, to SHORTS, two of
    which belong to each output (`vpmaddubsw`)."""
    single = builder.insert_element(ir.Constant(_HALF_WORDS, ir.Undefined), activations, word(0))
    splat = builder.shuffle_vector(single, single, ir.Constant(_HALF_WORDS, None))
    kind = ir.FunctionType(SHORTS, [_BYTES, _BYTES])
    multiply = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx2.pmadd.ub.sw")
    factors = [builder.bitcast(each, _BYTES) for each in (codes, splat)]
    return builder.add(total, builder.call(multiply, factors))


def add_neighbours(builder: ir.IRBuilder, parts: list[ir.Value]) -> ir.Value:
    """WORDS: the sums of neighbours in two vectors of SHORTS."""
    kind = ir.FunctionType(_HALF_WORDS, [SHORTS, SHORTS])
    multiply = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx2.pmadd.wd")
    ones = ir.Constant(SHORTS, [1] * 16)
    return join(builder, [builder.call(multiply, [part, ones]) for part in parts])
