"""Matrix products with weights that stay: prepared once, used at every step."""

from functools import partial

import torch
import torch.nn.functional as F

from .invariant import InvariantProduct, Make, Product, invariant_sizes
from .packed import PackedProduct, packs
from .widened import WidenedProduct, widens
from .widened_once import WidenedOnceProduct


class Linear:
    """y = x Wᵀ + b with W prepared for the device."""

    def __init__(self, product: Product, out_features: int, in_features: int) -> None:
        self._product = product
        self.out_features = out_features
        self.in_features = in_features

    @staticmethod
    def pack(weight: torch.Tensor, bias: torch.Tensor | None, batch_invariant: bool = False) -> "Linear":
        """Prepare weight [out, in], contiguous, and bias [out] or None.

        batch_invariant: a row's result has the same bits whatever other rows there are. CPU tensors only.
        What comes back holds the weight itself or a copy in a layout of its own: the caller frees its source
        at once.
        """
        if not batch_invariant:
            return Linear(_make(weight, batch_invariant)(weight, bias), *weight.shape)
        assert weight.device.type == "cpu", "only the CPU kernels have such a mode"
        make = _make(weight, batch_invariant)
        threads = torch.get_num_threads()
        sizes = invariant_sizes(make, *weight.shape, weight.dtype, bias is not None, threads)
        return Linear(InvariantProduct(make(weight, bias), sizes), *weight.shape)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [tokens, in_features] → [tokens, out_features], same dtype."""
        return self._product(x)


def _make(weight: torch.Tensor, batch_invariant: bool) -> Make:
    if weight.device.type == "cpu" and packs(weight.dtype):
        return PackedProduct
    if weight.device.type == "cpu" and widens(weight.dtype):
        return WidenedOnceProduct if batch_invariant else WidenedProduct
    return _plain


def _plain(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    return partial(F.linear, weight=weight, bias=bias)
