"""The grouped product of adapters on CUDA against plain PyTorch. No GPU needed."""

from __future__ import annotations

import pytest
import torch
from adapter_tables import check_additions
from interpreted_triton import DEVICE

from arbora.kernels.adapters.cuda import add_products  # isort: skip


@pytest.mark.parametrize(
    ("parts", "inputs", "ranks", "rows", "dtype"),
    [
        ((48,), 64, [4, 1, 8], 7, torch.float32),
        ((32, 16, 16), 33, [3, 0, 16], 40, torch.float32),
        # The interpreter cannot multiply bfloat16 matrices.
        ((99, 70), 130, [16, 5, 40], 1, torch.float16),
        ((99, 70), 130, [16, 5, 40], 20, torch.float16),
    ],
)
@pytest.mark.parametrize("padding", [0, 5])
def test_the_additions_agree_with_plain_products(
    parts: tuple[int, ...], inputs: int, ranks: list[int], rows: int, dtype: torch.dtype, padding: int
) -> None:
    check_additions(parts, inputs, ranks, rows, dtype, add_products, str(DEVICE), padding)
