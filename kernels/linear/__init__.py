"""Matrix products with fixed weights, which are prepared once for all steps."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
import torch.nn.functional as F

from . import dot_cpu
from .coded import CodedCudaProduct, CodedPacker, CodedShape, takes_on_cuda
from .fp8 import Fp8Packer, Fp8Product, Fp8Shape, takes_fp8
from .invariant import InvariantProduct, Make, Product, invariant_sizes
from .joined import JoinedProduct
from .packed import PackedProduct, packs
from .plain_cuda import Choice, PlainCudaProduct, Seconds, choose_fastest
from .quantized import QuantizedPacker, QuantizedProduct, QuantizedShape, takes
from .streamed import StreamedProduct, streams
from .widened import WidenedProduct, widens
from .widened_once import WidenedOnceProduct

__all__ = [
    "Choice",
    "CodedCudaProduct",
    "CodedPacker",
    "CodedProduct",
    "CodedShape",
    "Fp8Packer",
    "Fp8Product",
    "Fp8Shape",
    "Linear",
    "QuantizedPacker",
    "QuantizedProduct",
    "QuantizedShape",
    "Seconds",
    "as_float32",
    "takes",
    "takes_fp8",
    "takes_on_cuda",
]

CodedProduct = QuantizedProduct | Fp8Product | CodedCudaProduct
"""Multiplies by a weight stored as codes and scales."""


class Linear:
    """y = x Wᵀ + b with W prepared for the device."""

    def __init__(self, product: Product, out_features: int, in_features: int) -> None:
        self._product = product
        self.out_features = out_features
        self.in_features = in_features

    @staticmethod
    def pack(weight: torch.Tensor, bias: torch.Tensor | None, batch_invariant: bool = False) -> "Linear":
        """Prepare weight [out, in], contiguous, and bias [out] or None.

        batch_invariant: the bits of a row's result do not depend on other rows. CPU tensors only. The result
        holds the weight itself or a copy in another layout: the caller should free the source at once.
        """
        if not batch_invariant or _streams(weight.device, weight.dtype):
            return Linear(_make(weight.device, weight.dtype, batch_invariant)(weight, bias), *weight.shape)
        sizes = Linear.find_sizes(
            weight.shape[0], weight.shape[1], weight.dtype, weight.device, bias is not None
        )
        product = _make(weight.device, weight.dtype, batch_invariant)(weight, bias)
        return Linear(InvariantProduct(product, sizes), *weight.shape)

    @staticmethod
    def reads_parts(device: torch.device, dtype: torch.dtype) -> bool:
        """Whether `pack_parts` can prepare weights of this dtype on this device."""
        return _streams(device, dtype)

    @staticmethod
    def pack_parts(
        parts: Sequence[torch.Tensor], bias: torch.Tensor | None, batch_invariant: bool = False
    ) -> "Linear":
        """As `pack`, for a weight in parts [outputs of a part, in], which follow each other. They are only
        read, so they may be mapped from a file."""
        product = StreamedProduct(parts, bias, batch_invariant)
        return Linear(product, sum(len(part) for part in parts), parts[0].shape[1])

    @staticmethod
    def quantized(product: CodedProduct) -> "Linear":
        return Linear(product, product.outputs, product.inputs)

    @staticmethod
    def joined(parts: Sequence["Linear"]) -> "Linear":
        """The parts have the same input; their outputs are concatenated."""
        if len(parts) == 1:
            return parts[0]
        product = JoinedProduct([part._product for part in parts])
        return Linear(product, sum(part.out_features for part in parts), parts[0].in_features)

    @staticmethod
    def find_sizes(
        outputs: int, inputs: int, dtype: torch.dtype, device: torch.device, biased: bool
    ) -> tuple[int, ...]:
        """Finds the numbers of rows that a batch-invariant product of this shape may use, for `pack`.

        Empty: it may use any. The first call for a shape can make a trial weight of the same size. Call it
        before the weight is read, so that both are never in memory together.
        """
        assert device.type == "cpu", "only the CPU kernels have such a mode"
        if _streams(device, dtype):
            return ()
        make = _make(device, dtype, batch_invariant=True)
        return invariant_sizes(make, outputs, inputs, dtype, biased, torch.get_num_threads())

    @staticmethod
    def choose_fastest(linears: Iterable["Linear"], seconds: Seconds) -> list[Choice]:
        """On CUDA, chooses the fastest kernel for each shape and 1 to 4 rows. Returns the measured times.

        Call it before graphs are captured, because they keep the kernels that they have.
        """
        products = [part for linear in linears for part in linear._parts()]
        return choose_fastest([part for part in products if isinstance(part, PlainCudaProduct)], seconds)

    def stored_rows(self) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """Returns a function that reads rows [n, in] of the weight by their numbers, int32 or int64 [n],
        contiguous. Returns None if the product can't read them from its own copy of the weight."""
        return self._product.rows if isinstance(self._product, StreamedProduct) else None

    def _parts(self) -> Sequence[Product]:
        return self._product.products if isinstance(self._product, JoinedProduct) else [self._product]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [tokens, in_features] → [tokens, out_features], same dtype."""
        return self._product(x)


def as_float32(x: torch.Tensor) -> torch.Tensor:
    """x as float32, by a kernel of ours on a CPU."""
    return x.float() if x.is_cuda else dot_cpu.widened(x)


def _streams(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether `StreamedProduct` multiplies. It is batch-invariant for any number of rows."""
    return device.type == "cpu" and streams(dtype)


def _make(device: torch.device, dtype: torch.dtype, batch_invariant: bool = False) -> Make:
    if device.type == "cuda":
        return PlainCudaProduct
    if _streams(device, dtype):
        return partial(StreamedProduct, batch_invariant=batch_invariant)
    if device.type == "cpu" and packs(dtype):
        return PackedProduct
    if device.type == "cpu" and widens(dtype):
        return WidenedOnceProduct if batch_invariant else WidenedProduct
    return _plain


def _plain(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    return partial(F.linear, weight=weight, bias=bias)
