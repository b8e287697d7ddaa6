"""The kernels of adapters against plain PyTorch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from adapter_tables import TOLERANCE, check_additions, fill_table
from arbora.kernels.adapters import NO_ADAPTER, ProductAdapters, group_rows, select_rows
from arbora.kernels.adapters.cpu import add_products
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.integers(NO_ADAPTER, 5), min_size=1, max_size=80), st.integers(0, 20))
def test_each_row_with_an_adapter_is_in_one_block_of_its_adapter(adapters: list[int], more: int) -> None:
    count = len(adapters) + more
    grouped = group_rows(np.array(adapters, np.int32), count)
    order, blocks = grouped[1 : 1 + count], grouped[1 + count :].reshape(-1, 3)[: grouped[0]]
    rows = [(int(row), int(each)) for each, first, size in blocks for row in order[first : first + size]]
    assert sorted(rows) == [(row, each) for row, each in enumerate(adapters) if each != NO_ADAPTER]
    assert all(1 <= size <= 16 for _, _, size in blocks)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(
    ("parts", "inputs", "ranks"),
    [((48,), 64, [4, 1, 8]), ((32, 16, 16), 33, [3, 0, 16]), ((99, 700), 130, [16, 5, 256])],
)
@pytest.mark.parametrize("rows", [1, 7, 50])
def test_the_additions_agree_with_plain_products(
    parts: tuple[int, ...], inputs: int, ranks: list[int], rows: int, dtype: torch.dtype
) -> None:
    check_additions(parts, inputs, ranks, rows, dtype, add_products)


def test_a_row_has_the_same_bits_alone_and_among_others() -> None:
    torch.manual_seed(0)
    table, kept = fill_table((40,), 70, [5], torch.float32)
    product = ProductAdapters(table, 1, (40,), 5)
    x, y = torch.randn(23, 70), torch.randn(23, 40)
    alone = y.clone()
    for row in range(23):
        select_rows(torch.from_numpy(group_rows(np.zeros(1, np.int32), 1)))
        product(x[row : row + 1], alone[row : row + 1])
    select_rows(torch.from_numpy(group_rows(np.zeros(23, np.int32), 23)))
    product(x, y)
    select_rows(None)
    assert kept and torch.equal(alone, y)
