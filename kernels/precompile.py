"""Fill numba's cache, so that no start of a server compiles: `python -m arbora.kernels.precompile`."""

from collections.abc import Callable

import numpy as np
import torch

from .activation import cpu as activation_cpu
from .attention import AttentionBatch, items, merges, paged_attention, tiles
from .automaton import cpu as automaton_cpu
from .automaton.smallest import smallest_pool
from .common import amx, bfloat16_dots, feed_cpu, program, rows
from .common.step_tokens import StepTokens
from .linear import (
    QuantizedPacker,
    QuantizedShape,
    dot_cpu,
    fp8_cpu,
    fp8_rows,
    gathered,
    joined,
    streamed,
    takes,
)
from .linear.widened import HALVES
from .norm import cpu as norm_cpu
from .pages import cpu as pages_cpu
from .rotary import cpu as rotary_cpu
from .sampling import row_cpu, slots_cpu

DTYPES = (torch.bfloat16, torch.float32)


def compile_kernels() -> None:
    """Compile the CPU kernels; later processes load what is cached on disk."""
    groups: dict[str, Callable[[], None]] = {
        "attention": _attention,
        "matrix products": _products,
        "norms, activations and rotations": _small_kernels,
        "automata": _step_an_automaton,
        "sampling": _sampling,
    }
    for number, (name, compile_group) in enumerate(groups.items(), start=1):
        compile_group()
        print(f"  CPU kernels: {name} compiled, {number} of {len(groups)}", flush=True)


def _attention() -> None:
    pages_cpu.callback()
    for dtype in DTYPES:
        for stored in (dtype, torch.int8):
            items.run_callback(dtype, stored)
        merges.merge_callback(dtype)
    if bfloat16_dots.available():
        for stored in (torch.bfloat16, torch.int8):
            tiles.callback(stored)
    # A step with a group, for the functions that plan it.
    tables = [np.zeros(2, np.int32)] * 2
    batch = AttentionBatch.build([1, 1], [2, 2], tables, 1, torch.device("cpu"), [(0, 2, 1)])
    paged_attention(torch.zeros(2, 1, 32), torch.zeros(2, 1, 1, 1, 32), batch, 1.0)


def _products() -> None:
    joined.callback()
    for dtype in DTYPES:
        gathered.callback(dtype.itemsize)
        fp8_cpu.callback(dtype)
    fp8_rows.expansion()
    if streamed.streams(torch.bfloat16):
        streamed.callback()
        streamed.rows_callback()
        if amx.available():
            streamed.amx_callback()
    for half in set(DTYPES) & set(HALVES):
        dot_cpu.products(half)
        dot_cpu.widenings(half)
    for bits in (4, 8):
        for zero in (0, None):
            _quantized_product(QuantizedShape(1, 16, bits, 16, zero))


def _quantized_product(shape: QuantizedShape) -> None:
    if takes(shape, torch.device("cpu")):
        packer = QuantizedPacker(shape)
        one = torch.ones(1, 1)
        packer.write(0, torch.zeros(1, 16, dtype=torch.uint8), one, one if shape.zero is None else None)
        product = packer.product(None)
        product(product.rows(torch.zeros(1, dtype=torch.int64)))


def _small_kernels() -> None:
    program.callback()
    feed_cpu.callback()
    rows.callback()
    one = np.zeros(1, np.int64)
    StepTokens.of(one, one, one, np.zeros((1, 1), np.int32), one + 1, 1)
    for dtype in DTYPES:
        activation_cpu.callback(dtype)
        norm_cpu.callback(dtype)
        for stored in (dtype, torch.int8):
            rotary_cpu.callback(dtype, stored)


def _sampling() -> None:
    row_cpu.callback()
    slots_cpu.callback()


def _step_an_automaton() -> None:
    one = np.zeros(1, np.int32)
    pool = smallest_pool("cpu", 1)
    rows = pool.rows(one)
    pool.mask(rows)
    automaton_cpu.advance(rows, torch.from_numpy(one))


if __name__ == "__main__":
    compile_kernels()
