"""Building blocks of the numba kernels: typed pointers, half-precision floats, atomics.

numba sees half-precision values as integers with the same bits: uint16 for bfloat16, int16 for float16. Only
int8 elements are numbers themselves.
Pointers skip the test for negative indices that arrays have, so that LLVM can vectorise loops.
"""

import struct

import numpy as np
import torch
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from .emits import ANY, FLOAT, INT, VOID, emits
from .jit import compiled_fast
from .llvm import F32, I32, SECOND_LEVEL, narrow, prefetch_line, widen, word

KIND: dict[torch.dtype, np.generic] = {
    torch.bfloat16: np.uint16(0),
    torch.float16: np.int16(0),
    torch.float32: np.float32(0),
}
"""A value whose type tells a kernel how the elements of a tensor are stored."""

CELL_KIND: dict[torch.dtype, np.generic] = KIND | {torch.int8: np.int8(0)}
"""the same for the elements of a cache's cells"""


def has_feature(name: str) -> bool:
    """Whether the processor that numba compiles for has a feature, by LLVM's name."""
    _, _, features = cpu_target.target_context.codegen().magic_tuple()
    return f"+{name}" in features.split(",")


@intrinsic
def pointer(typing, address, kind):
    """Pointer to elements of the type of `kind` at an address."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(kind)(types.int64, kind), generate


@intrinsic
def shift(typing, start, count):
    """Pointer `count` elements after `start`."""

    def generate(context, builder, signature, arguments):
        return builder.gep(arguments[0], [arguments[1]])

    return start(start, types.int64), generate


@emits(FLOAT, ANY, INT)
def load(builder, start, index, kinds):
    """Element `index` as float32."""
    return widen(builder, builder.load(builder.gep(start, [index])), kinds[0].dtype)


@emits(VOID, ANY, INT, FLOAT)
def store(builder, start, index, value, kinds):
    """Write float32 `value` as element `index`, rounded to nearest even. int8: it must be within range."""
    builder.store(narrow(builder, value, kinds[0].dtype), builder.gep(start, [index]))


@emits(FLOAT, FLOAT, FLOAT, FLOAT)
def fma(builder, a, b, c):
    """a * b + c, rounded once. LLVM never reorders it, unlike a sum."""
    return builder.fma(a, b, c)


@emits(FLOAT, FLOAT, ANY)
def round_to(builder, value, kind, kinds):
    """float32 `value` after a round trip through the storage type of `kind`."""
    return widen(builder, narrow(builder, value, kinds[1]), kinds[1])


@emits(INT, types.CPointer(INT), INT)
def fetch_add(builder, counter, amount):
    """Add to an int64 atomically; returns the value before."""
    return builder.atomic_rmw("add", counter, amount, "seq_cst")


@emits(INT, types.CPointer(INT))
def read_counter(builder, counter):
    """An int64 that other threads change."""
    return builder.load_atomic(counter, "seq_cst", 8)


@emits(VOID)
def pause(builder):
    """Tells the processor that this loop waits, if it has an instruction for that."""
    if binding.get_process_triple().startswith("x86_64"):
        kind = ir.FunctionType(ir.VoidType(), [])
        builder.call(builder.module.declare_intrinsic("llvm.x86.sse2.pause", (), kind), [])


@emits(VOID)
def yield_core(builder):
    """Lets another thread run on this core, if one waits."""
    kind = ir.FunctionType(I32, [])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])


@emits(FLOAT, INT)
def unpack_float(builder, bits):
    """The float64 whose bits an int64 holds (see `pack_float`), as float32."""
    return builder.fptrunc(builder.bitcast(bits, ir.DoubleType()), F32)


def pack_float(value: float) -> int:
    """The bits of a float64, to pass it among int64 arguments."""
    bits: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return bits


@emits(VOID, ANY, INT)
def prefetch(builder, start, index):
    """Prefetch the cache line of element `index`, which may lie outside the array.

    The line is read into the second-level cache, which measurements showed to be faster than the first level
    (bench/results/cpu-notes.md, "Keys prefetched into the second-level cache"). The reason may be that a core
    can have only few reads into its first level under way.
    """
    prefetch_line(builder, builder.gep(start, [index]), SECOND_LEVEL)


@emits(FLOAT, types.uint32)
def float_with_bits(builder, bits):
    """The float32 with the bits of a word."""
    return builder.bitcast(bits, F32)


@emits(FLOAT, types.int32)
def power_of_two(builder, exponent):
    """2 ** exponent for an int32 in [-126, 127], as float32."""
    return builder.bitcast(builder.shl(builder.add(exponent, word(127)), word(23)), F32)


@compiled_fast
def exp(x):
    """e ** x for x <= 88, within 2e-7 of the true value; 0 below -87. Vectorises, unlike the C library's."""
    scaled = max(x, np.float32(-87.0)) * np.float32(1.4426950408889634)
    whole = np.floor(scaled + np.float32(0.5))
    part = scaled - whole
    power = np.float32(1.5353362e-4)
    power = power * part + np.float32(1.3398874e-3)
    power = power * part + np.float32(9.6184374e-3)
    power = power * part + np.float32(5.5503325e-2)
    power = power * part + np.float32(2.4022648e-1)
    power = power * part + np.float32(6.931472e-1)
    power = power * part + np.float32(1.0)
    value = power * power_of_two(np.int32(whole))
    return value if x >= np.float32(-87.0) else np.float32(0.0)
