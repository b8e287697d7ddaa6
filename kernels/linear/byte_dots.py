"""The layout of tiles of quantized weights, and products of bytes.

A tile holds the weights of 32 outputs as one stream of 64-byte vectors. For each group of inputs: the scales
of the outputs (float16), their offsets (float16, only if the format has them), then the codes. A 32-bit lane
of a vector of codes belongs to one output and holds its codes of 4 inputs. 8 bits: a vector for outputs 0–15,
then one for 16–31. 4 bits: one vector, with outputs 0–15 in the low halves of its bytes.
"""

from __future__ import annotations

import platform

from llvmlite import ir
from numba.core import cgutils

from ..common.llvm import I8, I16, I32, read, size, word
from ..common.numba_tools import has_feature
from ..common.vectors import FLOATS, HALVES, LANES, WORDS, join, read_vectors, split, words

TILE = 2 * LANES
"""outputs of a tile"""
VECTOR = 64  # bytes
SHORTS = ir.VectorType(I16, 16)
_BYTES, _HALF_WORDS = ir.VectorType(I8, 32), ir.VectorType(I32, 8)


def available() -> bool:
    """Whether the processor converts float16 and has fused multiply-adds: numba has no library for them."""
    return platform.machine() not in ("x86_64", "AMD64") or (has_feature("f16c") and has_feature("fma"))


def dot_width() -> int:
    """Bits of the widest vector whose bytes the processor multiplies and adds in one instruction, or 0."""
    if has_feature("avx512vnni"):
        return 512
    return 256 if has_feature("avxvnni") else 0


def multiplies_nibbles(bits: int) -> bool:
    """Whether `add_nibble_products` multiplies codes of this many bits."""
    return bits == 4 and dot_width() == 0 and has_feature("avx2")


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


def read_nibbles(builder: ir.IRBuilder, place: ir.Value, half: int) -> list[ir.Value]:
    """The codes of 4 bits of 16 outputs and 4 inputs as bytes: two vectors of SHORTS, 8 outputs each."""
    shift, mask = ir.Constant(SHORTS, [4 * half] * 16), ir.Constant(SHORTS, [0x0F0F] * 16)
    places = [builder.gep(place, [size(start)]) for start in (0, VECTOR // 2)]
    return [builder.and_(builder.lshr(read(builder, each, SHORTS), shift), mask) for each in places]


def add_nibble_products(
    builder: ir.IRBuilder, total: ir.Value, codes: ir.Value, activations: ir.Value
) -> ir.Value:
    """Adds the products of 8 outputs' codes of 4 bits and of 4 signed activations, a word, to SHORTS, two of
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
