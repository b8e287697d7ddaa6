"""Matrix products in which a row's result does not depend on the other rows.

A library chooses its code by the number of rows, and each choice may add in another order. For each shape of
weights this module tries many numbers of rows with a product whose result is only rounding errors, and keeps
the numbers that agree bit by bit. Other numbers of rows are split into these and padded with zeros.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache

import torch
import torch.nn.functional as F

Product = Callable[[torch.Tensor], torch.Tensor]
Make = Callable[[torch.Tensor, torch.Tensor | None], Product]
"""a product with weight [out, in] and bias [out] or None"""

SIZES = (*range(1, 17), *(step * (16 << octave) // 4 for octave in range(4) for step in range(5, 9)))
"""Numbers of rows to try: every one up to 16, then four in each octave up to 256."""

VARIED_OUTPUTS = 256
"""Distinct outputs of the trial; the others repeat them."""


class InvariantProduct:
    """Multiplies rows in parts, each padded with zero rows to one of `sizes`: the numbers of rows, ascending,
    with which a row has the same result at any index."""

    def __init__(self, product: Product, sizes: Sequence[int]) -> None:
        self._product = product
        self._sizes = sizes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        most = self._sizes[-1]
        if len(x) <= most:
            return self._multiply_padded(x)
        return torch.cat([self._multiply_padded(part) for part in torch.split(x, most)])

    def _multiply_padded(self, x: torch.Tensor) -> torch.Tensor:
        rows = len(x)
        size = self._sizes[bisect_left(self._sizes, rows)]
        if size == rows:
            return self._product(x)
        return self._product(F.pad(x, (0, 0, 0, size - rows)))[:rows]


@cache
def invariant_sizes(
    make: Make, outputs: int, inputs: int, dtype: torch.dtype, biased: bool, threads: int
) -> tuple[int, ...]:
    """The largest set of sizes that agree; among equally large sets, the one with the most rows.

    The set is never empty, because one row alone always qualifies. The library's choice of code also depends
    on `threads`, the number of computing threads.
    """
    weight, row = _trial(outputs, inputs, dtype)
    product = make(weight, torch.zeros(outputs, dtype=dtype) if biased else None)
    del weight
    agreeing: list[tuple[torch.Tensor, list[int]]] = []
    for size in SIZES:
        results = product(row.expand(size, -1).contiguous())
        if not torch.equal(results, results[:1].expand_as(results)):
            continue
        for result, same in agreeing:
            if torch.equal(result, results[0]):
                same.append(size)
                break
        else:
            agreeing.append((results[0].clone(), [size]))
    best: list[int] = max((same for _, same in agreeing), key=lambda same: (len(same), same[-1]))
    return tuple(best)


def _trial(outputs: int, inputs: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight [outputs, inputs] and a row [1, inputs] whose true product is 0.

    The terms cancel in pairs far apart, so that nearly every order of addition leaves another remainder.
    """
    random = torch.Generator().manual_seed(0)
    half, varied = inputs // 2, min(outputs, VARIED_OUTPUTS)
    order = torch.randperm(2 * half, generator=random)
    one = torch.randn(varied, half, generator=random)
    other = torch.randn(1, half, generator=random)
    lone = inputs - 2 * half
    weight = F.pad(torch.cat([one, one], 1)[:, order], (0, lone)).to(dtype)
    row = F.pad(torch.cat([other, -other], 1)[:, order], (0, lone)).to(dtype)
    return weight[torch.arange(outputs) % varied], row
