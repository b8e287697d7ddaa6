"""Matrix products with half-precision weights widened to float32 once, on processors that multiply only
float32.

The weights take twice the memory; any number of rows runs the same code.
"""

import torch

from .packed import PackedProduct


class WidenedOnceProduct:
    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._product = PackedProduct(weight.float(), None if bias is None else bias.float())

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._product(x.float()).to(x.dtype)
