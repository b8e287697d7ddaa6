"""Packed matrix products on the CPU against F.linear."""

import pytest
import torch
import torch.nn.functional as F
from arbora.kernels.linear import Linear, padded_rows

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rows", [1, 3, 37, 64])
@pytest.mark.parametrize("bias", [False, True])
def test_a_packed_product_agrees_with_torch(rows: int, bias: bool, dtype: torch.dtype) -> None:
    weight = (torch.randn(96, 80) / 9).to(dtype)
    offset = torch.randn(96).to(dtype) if bias else None
    x = torch.randn(rows, 80).to(dtype)
    linear = Linear.pack(weight, offset)
    expected = F.linear(x.double(), weight.double(), None if offset is None else offset.double())
    got = linear(x)
    assert got.dtype == dtype and (linear.in_features, linear.out_features) == (80, 96)
    torch.testing.assert_close(got.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_a_packed_weight_does_not_refer_to_its_source() -> None:
    weight = torch.randn(32, 32)
    linear = Linear.pack(weight, None)
    x = torch.randn(2, 32)
    before = linear(x)
    weight.zero_()
    assert torch.equal(linear(x), before)


def test_few_numbers_of_rows_are_multiplied_and_few_rows_wasted() -> None:
    sizes = [padded_rows(rows) for rows in range(1, 4097)]
    assert len(set(sizes)) == 16 + 8 * 8
    assert all(rows <= size <= 1.125 * rows for rows, size in enumerate(sizes, 1))
