"""Matrix products with weights that stay: prepared once, used at every step."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from .packed import PackedProduct, packs
from .widened import WidenedProduct, widens

Product = Callable[[torch.Tensor], torch.Tensor]


class Linear:
    """y = x Wᵀ + b with W prepared for the device."""

    def __init__(self, product: Product, out_features: int, in_features: int) -> None:
        self._product = product
        self.out_features = out_features
        self.in_features = in_features

    @staticmethod
    def pack(weight: torch.Tensor, bias: torch.Tensor | None) -> "Linear":
        """Prepare weight [out, in], contiguous, and bias [out] or None.

        What comes back holds the weight itself or a copy in a layout of its own: the caller frees its source
        at once.
        """
        return Linear(_product(weight, bias), *weight.shape)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [tokens, in_features] → [tokens, out_features], same dtype."""
        return self._product(x)


def _product(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    if weight.device.type == "cpu" and packs(weight.dtype):
        return PackedProduct(weight, bias)
    if weight.device.type == "cpu" and widens(weight.dtype):
        return WidenedProduct(weight, bias)
    return partial(F.linear, weight=weight, bias=bias)
