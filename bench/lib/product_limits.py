"""The rates at which this processor multiplies, and which share of its limits products reach."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from arbora.kernels.common import bfloat16_dots
from arbora.kernels.common.emits import INT, TO_WORDS, VOID, emits
from arbora.kernels.common.llvm import read, size, word, write
from arbora.kernels.common.numba_tools import pointer
from arbora.kernels.common.threads import ParallelKernel
from arbora.kernels.common.vectors import FLOATS, LANES, WORDS, fma, splat, zeros
from arbora.kernels.linear import CodedShape, Linear
from arbora.kernels.linear.byte_dots import SHORTS, add_byte_products, dot, dot_width
from arbora.kernels.linear.integer import IntegerCpuPacker
from llvmlite import ir
from numba.core import cgutils

ROWS = (1, 2, 4, 8, 16, 64, 512)
OUTPUTS, INPUTS = 65_536, 1024
"""of a product whose weights exceed the caches"""
TURNS = 400_000
SUMS, OPERANDS = 12, 3
"""sums that are added to in a turn, from as many vectors of memory"""


class Format(NamedTuple):
    name: str
    shape: CodedShape
    instruction: str
    """the key of its limit in `multiply_rates`"""


FORMATS = (
    Format("int4 by 128", CodedShape(OUTPUTS, INPUTS, 4, 128, 8), "bytes"),
    Format("Q4_0", CodedShape(OUTPUTS, INPUTS, 4, 32, 8), "bytes"),
    Format("Q4_K", CodedShape(OUTPUTS, INPUTS, 4, 32, None, True), "bytes"),
    Format("Q5_K", CodedShape(OUTPUTS, INPUTS, 5, 32, None, True), "bytes"),
    Format("Q6_K", CodedShape(OUTPUTS, INPUTS, 6, 16, 32, True), "bytes"),
    Format("int8 by 128", CodedShape(OUTPUTS, INPUTS, 8, 128, 128), "bytes of 8 bits"),
    Format("Q8_0", CodedShape(OUTPUTS, INPUTS, 8, 32, 128), "bytes of 8 bits"),
)


def _emit_loop(
    builder: ir.IRBuilder, turns: ir.Value, memory: ir.Value, kind: ir.Type, add: Callable[..., ir.Value]
) -> None:
    """Adds products to SUMS vectors in each turn. The operands differ from turn to turn, so that LLVM cannot
    multiply once for all turns."""
    sums = [cgutils.alloca_once_value(builder, ir.Constant(kind, None)) for _ in range(SUMS)]
    with cgutils.for_range(builder, turns) as loop:
        first = builder.mul(builder.and_(loop.index, size(7)), size(OPERANDS * LANES))
        start = builder.gep(memory, [first])
        for index, total in enumerate(sums):
            place = builder.gep(start, [size(index % OPERANDS * LANES)])
            builder.store(add(builder, builder.load(total), place, index // OPERANDS), total)
    for index, total in enumerate(sums):
        write(builder, builder.load(total), builder.gep(memory, [size(index * LANES)]))


@emits(VOID, INT, TO_WORDS)
def _multiply_bytes(builder: ir.IRBuilder, turns: ir.Value, memory: ir.Value) -> None:
    """Codes of up to 7 bits: `vpdpbusd`, or `vpmaddubsw` and an addition."""

    def add(builder: ir.IRBuilder, total: ir.Value, place: ir.Value, number: int) -> ir.Value:
        if dot_width() > 0:
            return dot(builder, total, read(builder, place, WORDS), splat(builder, word(number + 1), WORDS))
        return add_byte_products(builder, total, read(builder, place, SHORTS), word(number + 1))

    _emit_loop(builder, turns, memory, WORDS if dot_width() > 0 else SHORTS, add)


@emits(VOID, INT, TO_WORDS)
def _multiply_wide_bytes(builder: ir.IRBuilder, turns: ir.Value, memory: ir.Value) -> None:
    """Codes of 8 bits: `vpdpbusd`, or `vpmaddwd` and an addition."""
    half = ir.VectorType(ir.IntType(32), 8)
    kind = ir.FunctionType(half, [SHORTS, SHORTS])

    def add(builder: ir.IRBuilder, total: ir.Value, place: ir.Value, number: int) -> ir.Value:
        if dot_width() > 0:
            return dot(builder, total, read(builder, place, WORDS), splat(builder, word(number + 1), WORDS))
        multiply = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx2.pmadd.wd")
        factors = read(builder, place, SHORTS), ir.Constant(SHORTS, [number + 1] * 16)
        return builder.add(total, builder.call(multiply, factors))

    _emit_loop(builder, turns, memory, WORDS if dot_width() > 0 else half, add)


@emits(VOID, INT, TO_WORDS)
def _multiply_floats(builder: ir.IRBuilder, turns: ir.Value, memory: ir.Value) -> None:
    """`vdpbf16ps`, or float32 multiplications with additions."""

    def add(builder: ir.IRBuilder, total: ir.Value, place: ir.Value, number: int) -> ir.Value:
        operand = read(builder, place, WORDS)
        if bfloat16_dots.available():
            place = zeros(builder, 1)[0]
            builder.store(total, place)
            bfloat16_dots.add_lane_products(builder, place, operand, splat(builder, word(number), WORDS))
            return builder.load(place)
        factor = ir.Constant(FLOATS, [number + 1.0] * LANES)
        return fma(builder, builder.bitcast(operand, FLOATS), factor, total)

    _emit_loop(builder, turns, memory, FLOATS, add)


@ParallelKernel
def _run_bytes(arguments: Any) -> None:
    _multiply_bytes(arguments[1], pointer(arguments[2], np.uint32(0)))


@ParallelKernel
def _run_wide_bytes(arguments: Any) -> None:
    _multiply_wide_bytes(arguments[1], pointer(arguments[2], np.uint32(0)))


@ParallelKernel
def _run_floats(arguments: Any) -> None:
    _multiply_floats(arguments[1], pointer(arguments[2], np.uint32(0)))


KERNELS = {
    "bytes": (_run_bytes, 64 if dot_width() > 0 else 32),
    "bytes of 8 bits": (_run_wide_bytes, 64 if dot_width() > 0 else 16),
    "floats": (_run_floats, 32 if bfloat16_dots.available() else 16),
}
"""a kernel, and the products of an instruction"""


def multiply_rates(threads: int) -> dict[str, float]:
    """Products a second of all threads, for each of KERNELS."""
    rates = {}
    for name, (kernel, products) in KERNELS.items():
        memory = torch.zeros(8 * OPERANDS * LANES, dtype=torch.int32)
        arguments = (TURNS, memory.data_ptr())
        best = min(_seconds(partial(kernel.run, arguments, threads)) for _ in range(12))
        rates[name] = products * SUMS * TURNS * threads / best
    return rates


def _seconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def product_table(bandwidth: float, threads: int) -> Iterator[list[str]]:
    """Rows of a table: a format, its bits, the rate of its instruction, and for each of ROWS the share of the
    smaller limit that the product reaches. Each limit is measured beside the product."""
    for form in FORMATS:
        shape, codes = form.shape, torch.randint(0, 16, (OUTPUTS, INPUTS), dtype=torch.uint8)
        ones = torch.ones(OUTPUTS, shape.groups)
        factors = torch.ones(2 if shape.zero is None else 1, OUTPUTS, INPUTS // 256)
        packer = IntegerCpuPacker(shape)
        packer.write(
            0, codes, ones, ones if shape.zero is None else None, factors if shape.has_factors else None
        )
        linear = Linear.quantized(packer.product(None))
        yield list(_shares(form.name, linear, form.instruction, bandwidth, threads))
    plain = Linear.pack(torch.randn(OUTPUTS, INPUTS).bfloat16(), None)
    yield list(_shares("bfloat16", plain, "floats", bandwidth, threads))


def _shares(name: str, linear: Linear, instruction: str, bandwidth: float, threads: int) -> Iterator[str]:
    rate = multiply_rates(threads)[instruction]
    nbytes = 2 * OUTPUTS * INPUTS if instruction == "floats" else linear.product.nbytes  # type: ignore[attr-defined]
    yield name
    yield f"{nbytes * 8 / OUTPUTS / INPUTS:.2f}"
    yield f"{rate / 1e9:.0f}"
    for rows in ROWS:
        x = torch.randn(rows, INPUTS).bfloat16()
        best = min(_seconds(partial(linear, x)) for _ in range(max(3, 24 // rows)))
        floor = max(nbytes / bandwidth, rows * OUTPUTS * INPUTS / rate)
        yield f"{100 * floor / best:.0f} %"
