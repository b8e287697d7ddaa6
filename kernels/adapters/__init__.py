"""Low-rank additions of adapters to the results of matrix products (LoRA, Hu et al. 2021).

Row r of a product gets y[r] += scale · B (A x[r]), with A and B of the row's adapter. A product may have
several parts, such as queries, keys and values: the matrices A of its parts are stacked, and each B adds to
its part.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from .layout import BLOCK_ROWS, FIELDS, NO_ADAPTER, RANK, ProductTable

__all__ = ["FIELDS", "NO_ADAPTER", "RANK", "ProductAdapters", "group_rows", "select_rows"]

_selected: torch.Tensor | None = None


def select_rows(rows: torch.Tensor | None) -> None:
    """Sets the rows of all products until the next call, as `group_rows` describes them; None: they have no
    adapter."""
    global _selected
    _selected = rows


def group_rows(adapters: NDArray[np.int32], rows: int) -> NDArray[np.int32]:
    """Groups the rows of a product by their adapters, which are numbers or `NO_ADAPTER`. If there are fewer
    of them than `rows`, the last rows have none.

    Returns int32 [1 + 4 · rows]: the number of blocks; the rows in the order of their adapters; and for each
    block its adapter, its first place in that order, and its number of rows, at most `BLOCK_ROWS`.
    """
    order = np.argsort(adapters, kind="stable").astype(np.int32)
    order = order[np.count_nonzero(adapters == NO_ADAPTER) :]
    grouped = np.zeros(1 + 4 * rows, np.int32)
    grouped[1 : 1 + len(order)] = order
    numbers, starts = np.unique(adapters[order], return_index=True)
    ends = np.append(starts, len(order))[1:]
    blocks = [
        (number, first, min(BLOCK_ROWS, end - first))
        for number, start, end in zip(numbers, starts, ends, strict=True)
        for first in range(start, end, BLOCK_ROWS)
    ]
    grouped[0] = len(blocks)
    grouped[1 + rows :][: 3 * len(blocks)] = np.array(blocks, np.int32).flatten()
    return grouped


class ProductAdapters:
    """The additions of all adapters to one product."""

    def __init__(self, table: torch.Tensor, product: int, parts: Sequence[int], max_rank: int) -> None:
        """table: int64 [adapters, products, FIELDS] on the device, which may change between steps; product:
        the number of this product; parts: outputs of each part; max_rank: the largest rank of a part"""
        ends = torch.tensor(np.cumsum(parts), dtype=torch.int64, device=table.device)
        self.table = ProductTable(table[:, product], table.stride(0), tuple(parts), ends, max_rank)
        self.users = 0
        """adapters that change the product"""

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Adds to y [rows, outputs] what the adapters of the selected rows make of x [rows, inputs]."""
        rows = _selected
        if rows is None:
            return
        if len(rows) != 1 + 4 * len(x):
            # transformers' code may multiply something else than tokens.
            assert not self.users, "the adapted product has other rows than the step"
            return
        assert x.is_contiguous() and y.is_contiguous()
        if x.is_cuda:
            from . import cuda

            cuda.add_products(self.table, rows, x, y)
        else:
            from . import cpu

            cpu.add_products(self.table, rows, x, y)
