"""Several products of one input."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .invariant import Product


class JoinedProduct:
    """Their results, concatenated along the outputs."""

    def __init__(self, products: Sequence[Product]) -> None:
        self._products = products

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([product(x) for product in self._products], dim=-1)
