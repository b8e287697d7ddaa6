"""Matrix products with fixed weights, which are prepared once for all steps. `products` chooses them."""

from collections.abc import Callable, Iterable, Sequence

import torch

from ..adapters import ProductAdapters
from ..common.rows import join_columns
from .coded_weight import FACTOR_INPUTS, CodedPacker, CodedProduct, CodedShape, HostPacker
from .float_cuda import Choice, FloatCudaProduct, Seconds, choose_fastest
from .half_cpu import HalfCpuProduct, Strips, pack_strips
from .invariant import InvariantProduct, Product, invariant_sizes
from .onednn import OneDnnProduct
from .products import find_float_row, find_packer

__all__ = [
    "FACTOR_INPUTS",
    "Choice",
    "CodedPacker",
    "CodedProduct",
    "CodedShape",
    "HostPacker",
    "JoinedProduct",
    "Linear",
    "Seconds",
    "Strips",
    "find_packer",
    "pack_strips",
]


class Linear:
    """y = x Wᵀ + b with W prepared for the device."""

    def __init__(self, product: Product, out_features: int, in_features: int) -> None:
        self.product = product
        self.out_features = out_features
        self.in_features = in_features
        self.adapters: ProductAdapters | None = None
        """what adapters add to the results"""

    @property
    def may_run_beside_others(self) -> bool:
        """Whether several threads may multiply at a time: kernels of ours use all cores."""
        return isinstance(self.product, OneDnnProduct)

    @staticmethod
    def pack(weight: torch.Tensor, bias: torch.Tensor | None, batch_invariant: bool = False) -> "Linear":
        """Prepare weight [out, in], contiguous, and bias [out] or None.

        batch_invariant: the bits of a row's result do not depend on other rows. CPU tensors only. The result
        holds the weight itself or a copy in another layout: the caller should free the source at once.
        """
        row = find_float_row(weight.device, weight.dtype)
        if not batch_invariant:
            return Linear(row.product(weight, bias), *weight.shape)
        outputs, inputs = weight.shape
        sizes = Linear.find_sizes(outputs, inputs, weight.dtype, weight.device, bias is not None)
        product = row.deterministic(weight, bias)
        return Linear(product if row.is_invariant else InvariantProduct(product, sizes), *weight.shape)

    @staticmethod
    def reads_parts(device: torch.device, dtype: torch.dtype) -> bool:
        """Whether `pack_strips` can prepare weights of this dtype on this device."""
        return find_float_row(device, dtype).product is HalfCpuProduct

    @staticmethod
    def of_strips(strips: Strips, bias: torch.Tensor | None, batch_invariant: bool = False) -> "Linear":
        """As `pack`, for a weight that `pack_strips` packed."""
        product = HalfCpuProduct(strips, bias, batch_invariant)
        return Linear(product, strips.outputs, strips.inputs)

    @staticmethod
    def quantized(product: CodedProduct) -> "Linear":
        return Linear(product, product.shape.outputs, product.shape.inputs)

    @staticmethod
    def joined(parts: Sequence["Linear"]) -> "Linear":
        """The parts have the same input; their outputs are concatenated."""
        if len(parts) == 1:
            return parts[0]
        product = JoinedProduct([part.product for part in parts])
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
        row = find_float_row(device, dtype)
        if row.is_invariant:
            return ()
        return invariant_sizes(row.deterministic, outputs, inputs, dtype, biased, torch.get_num_threads())

    @staticmethod
    def choose_fastest(linears: Iterable["Linear"], seconds: Seconds) -> list[Choice]:
        """On CUDA, chooses the fastest kernel for each shape and 1 to 4 rows. Returns the measured times.

        Call it before graphs are captured, because they keep the kernels that they have.
        """
        products = [part for linear in linears for part in linear._parts()]
        return choose_fastest([part for part in products if isinstance(part, FloatCudaProduct)], seconds)

    def stored_rows(self) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """Returns a function that reads rows [n, in] of the weight by their numbers, int32 or int64 [n],
        contiguous. Returns None if the product can't read them from its own copy of the weight."""
        return self.product.rows if isinstance(self.product, HalfCpuProduct) else None

    def _parts(self) -> Sequence[Product]:
        return self.product.products if isinstance(self.product, JoinedProduct) else [self.product]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [tokens, in_features] → [tokens, out_features], same dtype."""
        y = self.product(x)
        if self.adapters is not None:
            self.adapters(x, y)
        return y


class JoinedProduct:
    """The results of several products, concatenated along the outputs."""

    def __init__(self, products: Sequence[Product]) -> None:
        self.products = products

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return join_columns([product(x) for product in self.products])
