"""Random adapters in the form that the kernels read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from arbora.kernels.adapters import FIELDS, NO_ADAPTER, ProductAdapters, group_rows
from arbora.kernels.adapters.layout import ProductTable
from numpy.typing import NDArray

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}
Add = Callable[[ProductTable, torch.Tensor, torch.Tensor, torch.Tensor], None]


class _Product(NamedTuple):
    down: torch.Tensor
    up: torch.Tensor
    scales: torch.Tensor
    parts: Sequence[int]

    def delta(self) -> torch.Tensor:
        """The addition to the weight, float64 [outputs, inputs]."""
        if not len(self.up):
            return torch.zeros(self.up.shape[1], self.down.shape[1], dtype=torch.float64)
        ups = self.up.double().split(list(self.parts), 1)
        downs = self.down.double().split(len(self.up))
        return torch.cat(
            [up.T @ down * scale for up, down, scale in zip(ups, downs, self.scales, strict=True)]
        )


class Adapters(NamedTuple):
    products: list[_Product]

    def delta(self, adapter: int) -> torch.Tensor:
        return self.products[adapter].delta()


def fill_table(
    parts: Sequence[int], inputs: int, ranks: Sequence[int], dtype: torch.dtype, device: str = "cpu"
) -> tuple[torch.Tensor, Adapters]:
    """A table of adapters for the second of two products, and their matrices, which must be kept."""
    products = []
    table = torch.zeros(len(ranks), 2, FIELDS, dtype=torch.int64)
    for adapter, rank in enumerate(ranks):
        down = torch.randn(len(parts) * rank, inputs).to(dtype) / inputs**0.5
        up, scales = torch.randn(rank, sum(parts)).to(dtype), torch.rand(len(parts))
        scales[-1] = 0 if adapter == 2 and len(parts) > 1 else scales[-1]
        product = _Product(down.to(device), up.to(device), scales.to(device), parts)
        addresses = [each.data_ptr() for each in product[:3]]
        table[adapter, 1] = torch.tensor([rank, *addresses], dtype=torch.int64)
        products.append(product)
    return table.to(device), Adapters(products)


def check_additions(
    parts: Sequence[int],
    inputs: int,
    ranks: Sequence[int],
    rows: int,
    dtype: torch.dtype,
    add: Add,
    device: str = "cpu",
    padding: int = 0,
) -> None:
    """Asserts that rows of random adapters and of the base model get what plain products add. The last
    `padding` rows are none of the step."""
    torch.manual_seed(0)
    adapters: NDArray[np.int32] = np.random.default_rng(0).integers(NO_ADAPTER, len(ranks), rows, np.int32)
    table, kept = fill_table(parts, inputs, ranks, dtype, device)
    product = ProductAdapters(table, 1, parts, max(ranks))
    count = rows + padding
    x, y = torch.randn(count, inputs).to(dtype), torch.randn(count, sum(parts)).to(dtype)
    expected = y.double()
    for row, adapter in enumerate(adapters):
        if adapter != NO_ADAPTER:
            expected[row] += kept.delta(adapter).cpu() @ x[row].double()
    got = y.to(device)
    add(product.table, torch.from_numpy(group_rows(adapters, count)).to(device), x.to(device), got)
    scale = expected.abs().max().item()
    torch.testing.assert_close(got.cpu().double(), expected, atol=TOLERANCE[dtype] * scale, rtol=0)
