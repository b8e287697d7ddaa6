"""Products with weights of 16 or 32 bits on CUDA: cuBLAS, or our kernel for few rows where it is faster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from .few_rows_cuda import Tiling

MAX_ROWS = 4
"""rows that our kernel multiplies, at most"""
ALIGNED_INPUTS = 8
"""inputs that our kernel loads at a time"""
MIN_GAIN = 0.05
"""share of cuBLAS's time that our kernel must save to be taken; smaller differences may be noise"""
FEW_OUTPUTS = 2048
"""Weights with at most this many outputs also try programs of one output, because larger programs would be
too few for all multiprocessors."""
MAX_TIMED = 16
"""products of one shape that are timed one after the other"""

Seconds = Callable[[Callable[[], None]], float]
"""returns the time that the device takes for work"""


class FloatCudaProduct:
    """y = x Wᵀ + bias for weight [outputs, inputs], contiguous, and bias [outputs] or None."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight, self.bias = weight, bias
        self.tilings: dict[int, Tiling] = {}
        """by number of rows; a number without one is multiplied by cuBLAS"""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [rows, inputs] → [rows, outputs]"""
        return self.multiply(x, self.tilings.get(len(x)))

    def multiply(self, x: torch.Tensor, tiling: Tiling | None) -> torch.Tensor:
        if tiling is None:
            return F.linear(x, self.weight, self.bias)
        from . import few_rows_cuda  # Triton may be missing without a GPU

        return few_rows_cuda.multiply(x.contiguous(), self.weight, self.bias, tiling)

    def tiles(self) -> tuple[Tiling, ...]:
        """The tilings of our kernel that may be fast for this weight."""
        from .few_rows_cuda import Tiling

        outputs, inputs = self.weight.shape
        if self.weight.element_size() != 2 or inputs % ALIGNED_INPUTS:
            return ()
        few = (Tiling(1, 2048),) if outputs <= FEW_OUTPUTS else ()
        return (*few, Tiling(4, 1024), Tiling(8, 1024))


class Choice(NamedTuple):
    """The times of one product of `rows` rows."""

    outputs: int
    inputs: int
    rows: int
    cublas: float
    """seconds"""
    ours: float
    """seconds, of the fastest tiles"""
    taken: Tiling | None
    """None: cuBLAS"""


def choose_fastest(products: Iterable[FloatCudaProduct], seconds: Seconds) -> list[Choice]:
    """Chooses the kernel for each product and number of rows, by the time of up to MAX_TIMED products of the
    same shape."""
    return [
        choice
        for group in _group_by_shape(products)
        if group[0].tiles()
        for choice in _choose(group, seconds)
    ]


def _choose(group: Sequence[FloatCudaProduct], seconds: Seconds) -> Iterator[Choice]:
    weight, timed = group[0].weight, group[:MAX_TIMED]
    outputs, inputs = weight.shape
    for rows in range(1, MAX_ROWS + 1):
        x = torch.randn(rows, inputs, device=weight.device).to(weight.dtype)
        tiles = group[0].tiles()
        cublas, *times = (
            seconds(partial(_multiply, timed, x, tiling)) / len(timed) for tiling in (None, *tiles)
        )
        ours, fastest = min(zip(times, tiles, strict=True))
        taken = fastest if ours < (1 - MIN_GAIN) * cublas else None
        if taken is not None:
            for product in group:
                product.tilings[rows] = taken
        yield Choice(outputs, inputs, rows, cublas, ours, taken)


def _multiply(products: Sequence[FloatCudaProduct], x: torch.Tensor, tiling: Tiling | None) -> None:
    for product in products:
        product.multiply(x, tiling)


def _group_by_shape(products: Iterable[FloatCudaProduct]) -> Iterable[list[FloatCudaProduct]]:
    groups: dict[tuple[torch.Size, torch.dtype, bool], list[FloatCudaProduct]] = {}
    for product in products:
        key = product.weight.shape, product.weight.dtype, product.bias is not None
        groups.setdefault(key, []).append(product)
    return groups.values()
