"""Which product multiplies by which weight on which processor. Nothing else decides it.

| weight | processor | product | few rows | many rows |
|---|---|---|---|---|
| bfloat16 | AVX512-BF16 | `HalfCpuProduct` | `vdpbf16ps` | the same, or AMX |
| bfloat16 | FMA, or oneDNN lacks bfloat16 | `HalfCpuProduct` | float32 in registers | the same |
| float16 | oneDNN lacks float16 | `HalfCpuProduct` | float32 in registers | the same |
| bfloat16, float16, float32 | oneDNN multiplies the dtype | `OneDnnProduct` | oneDNN | oneDNN |
| float32 | PyTorch without oneDNN | PyTorch's | | |
| codes of 4 to 8 bits | F16C and FMA | `IntegerCpuProduct` | bytes, by VNNI or AVX2 | the same, or AMX |
| FP8 | the same CPUs | `Fp8CpuProduct` | `vdpbf16ps`, otherwise in float32 | the same |
| any float | CUDA | `FloatCudaProduct` | our kernel, where it is faster | cuBLAS |
| codes of 4, 8 bits, FP8 | CUDA | `CodedCudaProduct` | codes widened | expanded, or activations rounded |

Two products contain others: `JoinedProduct` concatenates the results of several, and `InvariantProduct`
splits the rows so that a row's bits do not depend on the others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F

from . import coded_product_cuda, fp8, half_cpu, integer
from .coded_product_cuda import CodedCudaPacker
from .coded_weight import CodedPacker, CodedShape
from .float_cuda import FloatCudaProduct
from .fp8 import Fp8CpuPacker
from .half_cpu import HalfCpuProduct
from .integer import IntegerCpuPacker
from .invariant import Make, Product
from .onednn import OneDnnProduct, onednn_multiplies

FLOATS = (torch.bfloat16, torch.float16, torch.float32)
FP8 = None
"""the bits of a `CodedShape`"""


class FloatRow(NamedTuple):
    """A row of the table for weights of floats."""

    device: str
    dtypes: tuple[torch.dtype, ...]
    is_served: Callable[[torch.dtype], bool]
    """whether this processor and PyTorch have the product for the dtype"""
    product: Make
    deterministic: Make
    """the product with `--deterministic`"""
    is_invariant: bool
    """With `--deterministic`, the bits of a row's result do not depend on other rows. Otherwise an
    `InvariantProduct` must split the rows."""


class CodedRow(NamedTuple):
    """A row of the table for coded weights."""

    device: str
    bits: tuple[int | None, ...]
    is_served: Callable[[CodedShape], bool]
    """whether this processor has the product for the shape; otherwise the caller expands the weight"""
    packer: type[CodedPacker]
    """makes the product"""


def _always(dtype: torch.dtype) -> bool:
    return True


def _make_torch_product(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    return partial(F.linear, weight=weight, bias=bias)


# The first row that fits is taken.
_HALF = HalfCpuProduct, partial(HalfCpuProduct, batch_invariant=True)
FLOAT_PRODUCTS = (
    FloatRow("cuda", FLOATS, _always, FloatCudaProduct, FloatCudaProduct, is_invariant=False),
    FloatRow("cpu", (torch.bfloat16, torch.float16), half_cpu.serves, *_HALF, is_invariant=True),
    FloatRow("cpu", FLOATS, onednn_multiplies, OneDnnProduct, OneDnnProduct, is_invariant=False),
    FloatRow("cpu", (torch.float32,), _always, _make_torch_product, _make_torch_product, is_invariant=False),
)
CODED_PRODUCTS = (
    CodedRow("cuda", (4, 8, FP8), coded_product_cuda.serves, CodedCudaPacker),
    CodedRow("cpu", (4, 5, 6, 8), integer.serves, IntegerCpuPacker),
    CodedRow("cpu", (FP8,), fp8.serves, Fp8CpuPacker),
)


def find_float_row(device: torch.device, dtype: torch.dtype) -> FloatRow:
    """Returns the row of a float weight."""
    return next(
        row
        for row in FLOAT_PRODUCTS
        if row.device == device.type and dtype in row.dtypes and row.is_served(dtype)
    )


def find_packer(shape: CodedShape, device: torch.device) -> type[CodedPacker] | None:
    """Returns the packer of a coded weight; None if the device has no product for it, so that the caller
    expands the weight."""
    if min(shape.outputs, shape.inputs, shape.group) < 1:
        return None
    for row in CODED_PRODUCTS:
        if row.device == device.type and shape.bits in row.bits and row.is_served(shape):
            return row.packer
    return None
