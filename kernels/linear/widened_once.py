"""Matrix products for half-precision weights as float32, on processors that multiply only that.

The weights take twice the memory that they are stored in, and any number of rows meets the same code.
"""

import torch

from .packed import PackedProduct


class WidenedOnceProduct:
    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._product = PackedProduct(weight.float(), None if bias is None else bias.float())

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._product(x.float()).to(x.dtype)
