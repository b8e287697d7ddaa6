"""The PTX that widens codes on a GPU, for every code in every place. No GPU needed: numpy computes it."""

import numpy as np
import ptx_arithmetic
import pytest
import torch
from interpreted_triton import DEVICE

from arbora.kernels.linear import widening_cuda as widening  # isort: skip

assert DEVICE is not None
PLACES = [np.random.default_rng(place).permutation(256) for place in range(4)]
BYTES = np.stack(PLACES, axis=1).astype(np.uint8)
"""[256, 4]: every byte in every place of a word"""
SIGNED = torch.from_numpy(BYTES.view(np.int8)).double()
FP8 = torch.from_numpy(BYTES).view(torch.float8_e4m3fn).double()
BFLOAT16, FLOAT16 = torch.bfloat16, torch.float16


def computed(code: str, dtype: torch.dtype, outputs: int) -> torch.Tensor:
    """float64 [256, numbers]: the results for each word of BYTES"""
    words = ptx_arithmetic.run(code, [BYTES.view(np.uint32)[:, 0]], outputs)
    numbers = np.concatenate([ptx_arithmetic.halves(each) for each in words], axis=1)
    return torch.from_numpy(numbers).view(dtype).double()


@pytest.mark.parametrize(
    ("code", "dtype"),
    [(widening.NIBBLES_BFLOAT16.value, BFLOAT16), (widening.NIBBLES_FLOAT16.value, FLOAT16)],
    ids=["bfloat16", "float16"],
)
def test_codes_of_four_bits_are_widened_exactly(code: str, dtype: torch.dtype) -> None:
    high = torch.div(SIGNED, 16, rounding_mode="floor")
    low = SIGNED - 16 * high
    expected = torch.cat([low - 16 * (low > 7), high], dim=1)
    assert torch.equal(computed(code, dtype, 4), expected)


def test_codes_of_eight_bits_are_widened_exactly() -> None:
    assert torch.equal(computed(widening.BYTES_FLOAT16.value, FLOAT16, 2), SIGNED)


@pytest.mark.parametrize(
    ("code", "dtype"),
    [(widening.FP8_BFLOAT16.value, BFLOAT16), (widening.FP8_FLOAT16.value, FLOAT16)],
    ids=["bfloat16", "float16"],
)
def test_fp8_codes_are_widened_exactly(code: str, dtype: torch.dtype) -> None:
    got = 256 * computed(code, dtype, 2)
    numbers = FP8.isfinite()
    assert numbers.sum() == 4 * 254
    assert torch.equal(got[numbers], FP8[numbers])
    assert torch.equal(got[numbers].signbit(), FP8[numbers].signbit())


@pytest.mark.parametrize(
    ("code", "dtype"),
    [(widening.ONES_BFLOAT16.value, BFLOAT16), (widening.ONES_FLOAT16.value, FLOAT16)],
    ids=["bfloat16", "float16"],
)
def test_ones_are_ones(code: str, dtype: torch.dtype) -> None:
    assert torch.equal(computed(code, dtype, 2), torch.ones(256, 4).double())
