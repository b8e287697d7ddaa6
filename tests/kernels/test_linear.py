"""Matrix products on the CPU against F.linear."""

import pytest
import torch
import torch.nn.functional as F
from arbora.kernels.linear import Linear
from arbora.kernels.linear.packed import PackedProduct, packs, padded_rows
from arbora.kernels.linear.streamed import PANEL, StreamedProduct, streams
from arbora.kernels.linear.widened import FEW_ROWS, SCRATCH, WidenedProduct
from hypothesis import given, settings
from hypothesis import strategies as st

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
Product = type[PackedProduct | WidenedProduct | StreamedProduct]
Products = list[tuple[Product, torch.dtype]]
PRODUCTS: Products = [(PackedProduct, dtype) for dtype in TOLERANCE if packs(dtype)]
PRODUCTS += [(WidenedProduct, dtype) for dtype in (torch.bfloat16, torch.float16)]
PRODUCTS += [(StreamedProduct, dtype) for dtype in TOLERANCE if streams(dtype)]


@pytest.mark.parametrize("product, dtype", PRODUCTS)
@pytest.mark.parametrize("rows", [1, 2, 3, 7, FEW_ROWS, FEW_ROWS + 1, 37, 64])
@pytest.mark.parametrize("bias", [False, True])
def test_a_product_agrees_with_torch(rows: int, bias: bool, product: Product, dtype: torch.dtype) -> None:
    weight = (torch.randn(96, 83) / 9).to(dtype)
    offset = torch.randn(96).to(dtype) if bias else None
    x = torch.randn(rows, 83).to(dtype)
    expected = F.linear(x.double(), weight.double(), None if offset is None else offset.double())
    got = product(weight, offset)(x)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_a_weight_larger_than_the_scratch_buffer_is_widened_in_parts() -> None:
    outputs = SCRATCH // 4096 + 100
    weight = (torch.randn(outputs, 4096) / 64).bfloat16()
    bias = torch.randn(outputs).bfloat16()
    x = torch.randn(FEW_ROWS + 1, 4096).bfloat16()
    expected = F.linear(x.float(), weight.float(), bias.float())
    got = WidenedProduct(weight, bias)(x)
    torch.testing.assert_close(got.float(), expected, atol=3e-2, rtol=2e-2)


@given(
    rows=st.integers(1, 2 * PANEL + 3),
    outputs=st.integers(1, 200),
    inputs=st.integers(1, 700),
    threads=st.integers(1, 3),
    seed=st.integers(0, 99),
)
@settings(deadline=None, max_examples=60)
def test_a_row_of_a_batch_invariant_product_has_the_same_bits_beside_any_others(
    rows: int, outputs: int, inputs: int, threads: int, seed: int
) -> None:
    torch.manual_seed(seed)
    weight, bias = torch.randn(outputs, inputs).bfloat16(), torch.randn(outputs).bfloat16()
    x = torch.randn(rows, inputs).bfloat16()
    product = Linear.pack(weight, bias, batch_invariant=True)
    alone = torch.cat([product(x[row : row + 1]) for row in range(0, rows, 50)])
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        together = product(x)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(together[::50], alone)
    expected = F.linear(x.double(), weight.double(), bias.double())
    torch.testing.assert_close(together.double(), expected, atol=3e-2 * inputs**0.5, rtol=2e-2)


def test_a_streamed_weight_is_packed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(500, 33).bfloat16()
    whole = StreamedProduct(weight, None)
    monkeypatch.setattr("arbora.kernels.linear.streamed.PACKED_ELEMENTS", 1)
    parts = StreamedProduct(weight, None)
    assert torch.equal(whole._weight, parts._weight)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_every_dtype_has_a_product_that_knows_its_sizes(dtype: torch.dtype) -> None:
    linear = Linear.pack(torch.ones(96, 80, dtype=dtype), None)
    y = linear(torch.ones(3, 80, dtype=dtype))
    assert (linear.in_features, linear.out_features) == (80, 96)
    assert torch.equal(y, torch.full((3, 96), 80.0, dtype=dtype))


def test_a_packed_weight_does_not_refer_to_its_source() -> None:
    weight = torch.randn(32, 32)
    product = PackedProduct(weight, None)
    x = torch.randn(2, 32)
    before = product(x)
    weight.zero_()
    assert torch.equal(product(x), before)


def test_few_numbers_of_rows_are_multiplied_and_few_rows_wasted() -> None:
    sizes = [padded_rows(rows) for rows in range(1, 4097)]
    assert sizes[0] == 2, "one row alone would be added up in another order"
    assert len(set(sizes)) == 15 + 8 * 8
    assert all(rows <= size <= 1.125 * rows for rows, size in enumerate(sizes[1:], 2))
