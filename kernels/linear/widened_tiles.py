"""Tiles of quantized weights, widened to bfloat16 for AMX (see `byte_dots` for their format)."""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from ..common import amx
from ..common.bfloat16_dots import round_pairs
from ..common.llvm import F32, I8, read, size, write
from ..common.vectors import FLOATS, HALVES, LANES, WORDS, fma, splat, words
from .byte_dots import TILE, VECTOR


@intrinsic
def widen_groups(typing, address, groups, steps, zero, four_codes, sum_kind, target):
    """Writes a tile's weights, of `groups` groups of 4 × `steps` inputs, without the outputs' factors.

    four_codes: a value of uint16 for weights of 4 bits, uint32 for 8; sum_kind: float32 if the tile has
    offsets, otherwise they are -zero times the scales; target: words [inputs / 2, TILE] of pairs of inputs
    """
    bits = four_codes.bitwidth // 4

    def generate(context, builder, signature, arguments):
        address, groups, steps, zero, _, _, target = arguments
        if not amx.is_compiled():
            return context.get_dummy_value()
        start = builder.inttoptr(address, I8.as_pointer())
        head = VECTOR * (2 if sum_kind == types.float32 else 1)
        group_bytes = builder.add(size(head), builder.mul(steps, size(VECTOR * bits // 4)))
        less = splat(builder, builder.fneg(builder.sitofp(zero, F32)), FLOATS)
        with cgutils.for_range(builder, groups) as group:
            place = builder.gep(start, [builder.mul(group.index, group_bytes)])
            scales = [_halves(builder, place, half) for half in range(2)]
            if sum_kind == types.float32:
                offsets = [_halves(builder, place, 2 + half) for half in range(2)]
            else:
                offsets = [builder.fmul(scale, less) for scale in scales]
            codes = builder.gep(place, [size(head)])
            with cgutils.for_range(builder, steps) as step:
                number = builder.add(builder.mul(group.index, steps), step.index)
                to = builder.gep(target, [builder.mul(number, size(2 * TILE))])
                of_step = builder.gep(codes, [builder.mul(step.index, size(VECTOR * bits // 4))])
                for half, four in enumerate(_codes(builder, of_step, bits)):
                    low, high = _pairs(builder, four, scales[half], offsets[half])
                    write(builder, low, builder.gep(to, [size(half * LANES)]))
                    write(builder, high, builder.gep(to, [size(TILE + half * LANES)]))
        return context.get_dummy_value()

    i64 = types.int64
    kinds = (i64, i64, i64, i64, four_codes, sum_kind, types.CPointer(types.uint32))
    return types.void(*kinds), generate


def _halves(builder: ir.IRBuilder, place: ir.Value, number: int) -> ir.Value:
    """Reads 16 values of float16, number 16 × `number` and those after it, and converts them to float32."""
    halves = read(builder, builder.gep(place, [size(number * VECTOR // 2)]), HALVES)
    return builder.fpext(halves, FLOATS)


def _codes(builder: ir.IRBuilder, place: ir.Value, bits: int) -> list[ir.Value]:
    """Two vectors of codes, one byte each: those of outputs 0–15 and those of outputs 16–31, for 4 inputs."""
    if bits == 8:
        return [read(builder, builder.gep(place, [size(half * VECTOR)]), WORDS) for half in range(2)]
    both, mask = read(builder, place, WORDS), words(0x0F0F0F0F)
    return [builder.and_(both, mask), builder.and_(builder.lshr(both, words(4)), mask)]


def _pairs(builder: ir.IRBuilder, four: ir.Value, scale: ir.Value, offset: ir.Value) -> list[ir.Value]:
    """The weights of the first two inputs as pairs, and those of the last two."""
    values = []
    for index in range(4):
        code = builder.and_(builder.lshr(four, words(8 * index)), words(0xFF))
        values.append(fma(builder, builder.sitofp(code, FLOATS), scale, offset))
    return [round_pairs(builder, *values[first : first + 2]) for first in (0, 2)]
