"""Products with FP8 weights against float64, and the independence of a row's bits."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from arbora.kernels.common import bfloat16_dots
from arbora.kernels.common.numba_tools import has_feature
from arbora.kernels.linear import CodedShape, Linear, find_packer
from arbora.kernels.linear.fp8 import Fp8CpuPacker, Fp8CpuProduct
from arbora.kernels.linear.fp8_cpu import PANEL
from fp8_probe import results
from hypothesis import given, settings
from hypothesis import strategies as st
from lesser_processor import features_without, output_without

CPU = torch.device("cpu")
PROBE = Path(__file__).parents[1] / "support" / "fp8_probe.py"
ONE_ROUNDING = {torch.float32: 2**-23, torch.bfloat16: 2**-8, torch.float16: 2**-11}
SUBNORMAL = 2**-25
"""half of the smallest float16"""
FINITE = [code for code in range(256) if code & 0x7F != 0x7F]
WITHOUT = {
    "without byte permutations": ("avx512vbmi",),
    "without bfloat16 products": ("avx512bf16",),
    "without AVX-512": ("avx512", "avx10", "evex512", "amx"),
}


@dataclass(frozen=True)
class Case:
    shape: CodedShape
    product: Fp8CpuProduct
    weight: torch.Tensor
    """float64 [outputs, inputs]"""
    bias: torch.Tensor | None


def make_case(shape: CodedShape, seed: int = 0, biased: bool = True, step: int = 96) -> Case:
    """Codes of every finite value, also the subnormal ones."""
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, len(FINITE), (shape.outputs, shape.inputs), generator=random)
    codes = torch.tensor(FINITE, dtype=torch.uint8)[ids].view(torch.float8_e4m3fn)
    scales = torch.randn(shape.outputs, shape.groups, generator=random)
    bias = torch.randn(shape.outputs, generator=random) if biased else None
    packer = Fp8CpuPacker(shape)
    for begin in range(0, shape.outputs, step):
        packer.write(begin, codes[begin : begin + step], scales[begin : begin + step])
    of_inputs = scales.double().repeat_interleave(shape.group, 1)[:, : shape.inputs]
    return Case(shape, packer.product(bias), codes.double() * of_inputs, bias)


shapes = st.builds(
    lambda outputs, inputs, group: CodedShape(outputs, inputs, None, group, 0),
    st.integers(1, 200),
    st.integers(1, 700),
    st.one_of(st.integers(1, 150).map(lambda half: 2 * half), st.just(700)),
)


@settings(max_examples=60, deadline=None)
@given(
    shapes, st.integers(1, 70), st.sampled_from(list(ONE_ROUNDING)), st.booleans(), st.integers(0, 2**32 - 1)
)
def test_a_product_agrees_with_float64(
    shape: CodedShape, rows: int, dtype: torch.dtype, biased: bool, seed: int
) -> None:
    case = make_case(shape, seed, biased)
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, shape.inputs, generator=random).div(256).to(dtype)
    expected, magnitude = x.double() @ case.weight.T, x.double().abs() @ case.weight.abs().T
    if case.bias is not None:
        expected, magnitude = expected + case.bias, magnitude + case.bias.abs()
    y = case.product(x)
    assert y.dtype == dtype
    # At most 256 sums of a block, one for each block, and the scale.
    bound = ONE_ROUNDING[dtype] * expected.abs() + magnitude * (256 + shape.inputs // 2) * 2**-24
    assert ((y.double() - expected).abs() <= bound + SUBNORMAL).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rows", [1, 6, 7])
def test_every_code_is_multiplied_exactly(dtype: torch.dtype, rows: int) -> None:
    codes = torch.tensor(FINITE, dtype=torch.uint8).view(torch.float8_e4m3fn)
    packer = Fp8CpuPacker(CodedShape(len(FINITE), 3, None, 3, 0))
    packer.write(
        0,
        codes.view(torch.uint8).repeat(3, 1).T.contiguous().view(torch.float8_e4m3fn),
        torch.ones(len(FINITE), 1),
    )
    x = torch.zeros(rows, 3, dtype=dtype)
    x[:, 1] = 1
    assert torch.equal(packer.product(None)(x), codes.to(dtype).expand(rows, -1))


@pytest.mark.parametrize("group", [2, 40, 96])
def test_the_stored_weights_are_the_given_ones(group: int) -> None:
    case = make_case(CodedShape(150, 96, None, group, 0), step=20)
    ids = torch.tensor([149, 0, 33, 33, 64, 127])
    assert torch.equal(case.product.rows(ids), case.weight[ids].float())


@settings(max_examples=60, deadline=None)
@given(shapes, st.integers(2, 90), st.sampled_from(list(ONE_ROUNDING)), st.data())
def test_a_rows_bits_depend_neither_on_other_rows_nor_on_threads(
    shape: CodedShape, rows: int, dtype: torch.dtype, data: st.DataObject
) -> None:
    product = make_case(shape).product
    x = torch.randn(rows, shape.inputs, generator=torch.Generator().manual_seed(1)).div(256).to(dtype)
    y = product(x)
    begin = data.draw(st.integers(0, rows - 1))
    end = data.draw(st.integers(begin + 1, rows))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(data.draw(st.integers(1, 3)))
        assert torch.equal(product(x[begin:end]), y[begin:end])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_of_several_panels_have_the_bits_of_a_single_row(dtype: torch.dtype) -> None:
    product = make_case(CodedShape(70, 64, None, 32, 0)).product
    x = torch.randn(2 * PANEL + 30, 64).to(dtype)
    y = product(x)
    for row in (0, PANEL - 1, PANEL, len(x) - 1):
        assert torch.equal(product(x[row : row + 1]), y[row : row + 1])


@pytest.mark.parametrize("lacking", list(WITHOUT.values()), ids=list(WITHOUT))
def test_code_for_other_processors_agrees_with_float64(lacking: tuple[str, ...]) -> None:
    got = json.loads(output_without(lacking, [str(PROBE)]))
    assert got["pairs"] == bool(features_without(lacking).get("avx512bf16"))
    assert max(got["errors"].values()) < 1, got
    if got["pairs"] and bfloat16_dots.available():
        assert got["digest"] == results()["digest"], "another way to widen the codes gives the same bits"


def test_a_processor_with_bfloat16_products_uses_them() -> None:
    assert results()["pairs"] == has_feature("avx512bf16")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("rows", [3, 20])
def test_a_row_with_nan_or_infinity_changes_no_other_row(rows: int, value: float, dtype: torch.dtype) -> None:
    product = make_case(CodedShape(40, 63, None, 20, 0)).product
    x = torch.randn(rows, 63).to(dtype)
    y = product(x)
    x[1, 40] = value
    changed = product(x)
    assert not changed[1].isfinite().any()
    keep = torch.arange(rows) != 1
    assert torch.equal(changed[keep], y[keep])


@pytest.mark.parametrize("wrong", [-1, 40])
def test_only_ids_of_outputs_have_rows(wrong: int) -> None:
    product = make_case(CodedShape(40, 64, None, 32, 0)).product
    assert product.rows(torch.tensor([], dtype=torch.int64)).shape == (0, 64)
    with pytest.raises(AssertionError, match="40 outputs"):
        product.rows(torch.tensor([3, wrong]))


def test_no_row_gives_no_row() -> None:
    assert make_case(CodedShape(40, 64, None, 32, 0)).product(torch.empty(0, 64)).shape == (0, 40)


def test_a_linear_has_the_sizes_of_its_product() -> None:
    case = make_case(CodedShape(40, 64, None, 32, 0))
    linear = Linear.quantized(case.product)
    x = torch.randn(3, 128).bfloat16()[:, ::2]
    assert (linear.in_features, linear.out_features) == (64, 40)
    assert torch.equal(linear(x), case.product(x.contiguous()))


@pytest.mark.parametrize("group, bits_a_weight", [(1024, 8.03125), (128, 8.25)])
def test_a_weight_takes_few_bits(group: int, bits_a_weight: float) -> None:
    product = Fp8CpuPacker(CodedShape(4096, 1024, None, group, 0)).product(None)
    assert product.nbytes == 4096 * 1024 * bits_a_weight / 8


def test_only_the_cpu_has_a_product_and_groups_are_whole_pairs() -> None:
    shape = CodedShape(8, 64, None, 32, 0)
    assert find_packer(shape, CPU) is Fp8CpuPacker
    for group in (63, 128):
        assert find_packer(CodedShape(8, 63, None, group, 0), CPU) is Fp8CpuPacker
    assert find_packer(CodedShape(8, 64, None, 31, 0), CPU) is None
