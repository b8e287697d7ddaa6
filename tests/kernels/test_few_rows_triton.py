"""Products of few rows on CUDA against float64, and the choice between them. No GPU needed."""

from collections.abc import Callable

import pytest
import torch
from arbora.kernels.linear import JoinedProduct, Linear
from arbora.kernels.linear.float_cuda import FEW_OUTPUTS, FloatCudaProduct
from arbora.kernels.linear.products import find_float_row
from interpreted_triton import DEVICE

from arbora.kernels.linear.few_rows_cuda import Tiling, multiply  # isort: skip

ROUNDING = {torch.bfloat16: 2.0**-7, torch.float16: 2.0**-11}
"""Triton's interpreter truncates to bfloat16; a GPU rounds."""
SMALL = Tiling(4, 32)


@pytest.mark.parametrize(
    ("rows", "tiling", "dtype"),
    [
        (1, SMALL, torch.bfloat16),
        (2, Tiling(8, 64), torch.bfloat16),
        (3, Tiling(1, 32), torch.float16),
        (4, SMALL, torch.float16),
    ],
)
@pytest.mark.parametrize(("outputs", "inputs", "biased"), [(8, 64, False), (5, 70, True)])
def test_rows_are_multiplied_with_every_weight(
    rows: int, tiling: Tiling, dtype: torch.dtype, outputs: int, inputs: int, biased: bool
) -> None:
    weight, x = torch.randn(outputs, inputs).to(dtype), torch.randn(rows, inputs).to(dtype)
    bias = torch.randn(outputs).to(dtype) if biased else None
    moved = None if bias is None else bias.to(DEVICE)
    got = multiply(x.to(DEVICE), weight.to(DEVICE), moved, tiling).cpu()
    expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    assert got.dtype == dtype
    error = 2e-6 * (x.double().abs() @ weight.double().abs().T)
    assert ((got.double() - expected).abs() <= error + ROUNDING[dtype] * expected.abs()).all()


def test_a_row_has_the_same_bits_beside_others() -> None:
    weight, x = torch.randn(9, 70).bfloat16().to(DEVICE), torch.randn(4, 70).bfloat16().to(DEVICE)
    together = multiply(x, weight, None, SMALL)
    for row in range(4):
        assert torch.equal(multiply(x[row : row + 1], weight, None, SMALL)[0], together[row])


def product(outputs: int, inputs: int, dtype: torch.dtype = torch.bfloat16) -> FloatCudaProduct:
    return FloatCudaProduct(torch.randn(outputs, inputs).to(dtype), None)


def linear(*products: FloatCudaProduct) -> Linear:
    joined = products[0] if len(products) == 1 else JoinedProduct(products)
    return Linear(joined, sum(len(each.weight) for each in products), products[0].weight.shape[1])


class FakeClock:
    """Work on a product takes the time given for its shape, number of rows and tiling."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: Callable[[int, int, Tiling | None], float]):
        self._seconds, self._taken, self.works = seconds, 0.0, 0
        monkeypatch.setattr(FloatCudaProduct, "multiply", lambda *arguments: self._pass(*arguments))

    def _pass(self, product: FloatCudaProduct, x: torch.Tensor, tiling: Tiling | None) -> None:
        assert x.shape[1] == product.weight.shape[1] and x.dtype == product.weight.dtype
        self._taken += self._seconds(len(product.weight), len(x), tiling)

    def seconds(self, work: Callable[[], None]) -> float:
        before = self._taken
        work()
        self.works += 1
        return self._taken - before


def test_each_shape_and_number_of_rows_takes_the_fastest_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(outputs: int, rows: int, tiling: Tiling | None) -> float:
        ours = {Tiling(4, 1024): 8.0, Tiling(8, 1024): 5.0 + rows}
        return 10.0 if tiling is None else ours[tiling] + (3 if outputs == 4096 else 0)

    wide, narrow = [product(4100, 64) for _ in range(3)], product(4096, 64)
    clock = FakeClock(monkeypatch, seconds)
    choices = Linear.choose_fastest([*map(linear, wide), linear(narrow)], clock.seconds)
    expected = {1: Tiling(8, 1024), 2: Tiling(8, 1024), 3: Tiling(4, 1024), 4: Tiling(4, 1024)}
    assert [each.tilings for each in wide] == [expected] * 3
    assert narrow.tilings == {1: Tiling(8, 1024)}
    assert [(each.outputs, each.rows, each.taken) for each in choices[:4]] == [
        (4100, rows, taken) for rows, taken in expected.items()
    ]
    assert choices[4] == (4096, 64, 1, 10.0, 9.0, Tiling(8, 1024))
    assert choices[5] == (4096, 64, 2, 10.0, 10.0, None)


def test_a_gain_within_the_clocks_noise_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    one = product(4096, 64)
    clock = FakeClock(monkeypatch, lambda outputs, rows, tiling: 1.0 if tiling is None else 0.96)
    choices = Linear.choose_fastest([linear(one)], clock.seconds)
    assert one.tilings == {} and [choice.taken for choice in choices] == [None] * 4


def test_parts_of_a_joined_product_are_chosen_too(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = product(FEW_OUTPUTS, 64), product(4096, 64)
    clock = FakeClock(
        monkeypatch, lambda outputs, rows, tiling: 2.0 if tiling is None else 1 / tiling.outputs
    )
    Linear.choose_fastest([linear(*parts)], clock.seconds)
    assert [set(part.tilings.values()) for part in parts] == [{Tiling(8, 1024)}] * 2
    assert clock.works == 4 * (4 + 3)  # few outputs have one more tiling to try


def test_the_choice_decides_what_multiplies_a_number_of_rows() -> None:
    one = FloatCudaProduct(torch.randn(9, 64).bfloat16().to(DEVICE), None)
    one.tilings[2] = SMALL
    for rows in (1, 2, 5):
        x = torch.randn(rows, 64).bfloat16().to(DEVICE)
        expected = multiply(x, one.weight, None, SMALL) if rows == 2 else x @ one.weight.T
        assert torch.equal(one(x), expected)


@pytest.mark.parametrize(("inputs", "dtype"), [(64, torch.float32), (60, torch.bfloat16)])
def test_other_products_are_not_timed(inputs: int, dtype: torch.dtype) -> None:
    def seconds(work: Callable[[], None]) -> float:
        raise AssertionError("timed")

    assert Linear.choose_fastest([linear(product(4096, inputs, dtype))], seconds) == []


def test_cuda_weights_have_these_products() -> None:
    assert find_float_row(torch.device("cuda"), torch.bfloat16).product is FloatCudaProduct
