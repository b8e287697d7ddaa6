"""Products of codes on CUDA against float64: no GPU needed, sizes kept small for Triton's interpreter."""

from typing import NamedTuple

import pytest
import torch
from arbora.kernels.linear import CodedShape, coded_cuda, coded_product_cuda, find_packer
from arbora.kernels.linear.coded_product_cuda import CodedCudaPacker, CodedCudaProduct
from interpreted_triton import DEVICE

ROUNDING = 2.0**-11
"""of scales and offsets, which are stored as float16"""
SHAPES = {
    "4 bits": CodedShape(70, 128, 4, 32, 8),
    "4 bits, an odd number of groups": CodedShape(65, 96, 4, 32, 8),
    "4 bits with zero points": CodedShape(70, 128, 4, 64, None),
    "4 bits with another zero": CodedShape(33, 64, 4, 16, 7),
    "4 bits, a group of 48 inputs": CodedShape(33, 96, 4, 48, 8),
    "4 bits, one group": CodedShape(20, 384, 4, 384, 8),
    "8 bits": CodedShape(70, 256, 8, 128, 128),
    "8 bits with offsets": CodedShape(65, 128, 8, 32, None),
    "FP8, one group": CodedShape(70, 200, None, 200, 0),
    "FP8, a smaller last group": CodedShape(65, 200, None, 128, 0),
    "FP8, groups of 32": CodedShape(65, 96, None, 32, 0),
}


class Weight(NamedTuple):
    codes: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor | None
    values: torch.Tensor
    """float64 [outputs, inputs]"""
    magnitudes: torch.Tensor
    """float64 [outputs, inputs]: |code · scale| + |offset|, of which the stored weight is off by ROUNDING"""


def random_weight(shape: CodedShape) -> Weight:
    groups = -(-shape.inputs // shape.group)
    size = (shape.outputs, shape.inputs)
    scales = torch.rand(shape.outputs, groups) * torch.logspace(-6, 6, shape.outputs)[:, None]
    if shape.bits is None:
        codes = (torch.randn(size) * 100).clamp(-448, 448).to(torch.float8_e4m3fn)
    else:
        codes = torch.randint(0, 1 << shape.bits, size, dtype=torch.uint8)
    offsets = -scales * torch.randint(0, 16, scales.shape) if shape.zero is None else None
    given = -scales * (shape.zero or 0) if offsets is None else offsets
    wide, added = (
        each.double().repeat_interleave(shape.group, 1)[:, : shape.inputs] for each in (scales, given)
    )
    middle = 0 if shape.bits is None else 1 << (shape.bits - 1)
    signed = codes.double() - middle
    magnitudes = (signed * wide).abs() + (added + middle * wide).abs()
    return Weight(codes, scales, offsets, codes.double() * wide + added, magnitudes)


def packed(
    shape: CodedShape, weight: Weight, bias: torch.Tensor | None = None, order: torch.Tensor | None = None
) -> CodedCudaProduct:
    packer = CodedCudaPacker(shape, order, DEVICE)
    for begin in range(0, shape.outputs, 48):
        part = slice(begin, begin + 48)
        offsets = None if weight.offsets is None else weight.offsets[part]
        packer.write(begin, weight.codes[part], weight.scales[part], offsets)
    return packer.product(bias)


def assert_product(
    shape: CodedShape, rows: int, dtype: torch.dtype = torch.float32, biased: bool = False
) -> None:
    weight = random_weight(shape)
    bias = torch.randn(shape.outputs).to(dtype) if biased else None
    product = packed(shape, weight, None if bias is None else bias.to(DEVICE))
    x = torch.randn(rows, shape.inputs).to(dtype)
    # In float16 the largest results would overflow.
    x = x * 2.0**-12 if dtype == torch.float16 else x
    got = product(x.to(DEVICE)).cpu()
    assert got.dtype == dtype
    expected = x.double() @ weight.values.T + (0 if bias is None else bias.double())
    exact = ROUNDING if shape.bits is not None else 2.0**-20
    bound = 1.01 * exact * (x.double().abs() @ weight.magnitudes.T) + 2e-6 * expected.abs() + 1e-6
    if dtype == torch.float16:
        bound += 2.0**-10 * expected.abs() + 2.0**-24
        expected, got = expected.clamp(-65504, 65504), got.clamp(-65504, 65504)
    assert ((got.double() - expected).abs() <= bound).all()


@pytest.mark.parametrize("name", SHAPES)
def test_a_row_is_multiplied_with_the_weights_that_the_codes_stand_for(name: str) -> None:
    assert_product(SHAPES[name], 1)


@pytest.mark.parametrize(
    ("name", "rows"), [("4 bits with zero points", 17), ("8 bits", 70), ("FP8, a smaller last group", 3)]
)
def test_any_number_of_rows_is_multiplied(name: str, rows: int) -> None:
    assert_product(SHAPES[name], rows, biased=True)


@pytest.mark.parametrize("name", SHAPES)
def test_many_rows_are_multiplied_with_an_expanded_weight(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coded_product_cuda, "FEW_ROWS", 4)
    monkeypatch.setattr(coded_product_cuda, "EXPANDED_BYTES", 40 * 4 * SHAPES[name].inputs)
    assert_product(SHAPES[name], 5, biased=True)


@pytest.mark.parametrize("name", ["4 bits", "8 bits with offsets", "FP8, one group"])
def test_the_inputs_of_a_product_may_be_split(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coded_cuda, "MIN_TURNS", 1)
    monkeypatch.setattr(coded_cuda, "processors", lambda device: 132)
    shape = SHAPES[name]
    steps = CodedCudaPacker(shape, device=DEVICE)._steps
    assert coded_cuda.split_count(3, steps, 132) > 1
    assert_product(shape, 3, biased=True)


@pytest.mark.parametrize("name", ["4 bits with zero points", "8 bits", "FP8, groups of 32"])
def test_float16_activations_are_multiplied(name: str) -> None:
    assert_product(SHAPES[name], 5, torch.float16)


@pytest.mark.parametrize("name", SHAPES)
def test_rows_of_the_weight_are_read_as_they_are_stored(name: str) -> None:
    shape = SHAPES[name]
    weight = random_weight(shape)
    ids = torch.tensor([3, shape.outputs - 1, 3, 0])
    got = packed(shape, weight).rows(ids.to(DEVICE)).cpu().double()
    exact = ROUNDING if shape.bits is not None else 2.0**-22
    assert ((got - weight.values[ids]).abs() <= 1.01 * exact * weight.magnitudes[ids]).all()


def test_inputs_may_be_in_another_order() -> None:
    shape = SHAPES["4 bits with zero points"]
    weight, order = random_weight(shape), torch.randperm(shape.inputs)
    x, product = torch.randn(2, shape.inputs), packed(shape, weight, order=order)
    got = product(x.to(DEVICE)).cpu().double()
    reordered = x[:, order].double()
    bound = 1.01 * ROUNDING * (reordered.abs() @ weight.magnitudes.T) + 1e-6
    assert ((got - reordered @ weight.values.T).abs() <= bound).all()
    rows = product.rows(torch.arange(5, device=DEVICE)).cpu().double()[:, order]
    assert ((rows - weight.values[:5]).abs() <= 1.01 * ROUNDING * weight.magnitudes[:5]).all()


def test_a_row_has_the_same_bits_beside_others_of_its_block() -> None:
    shape = SHAPES["4 bits"]
    product, x = packed(shape, random_weight(shape)), torch.randn(8, shape.inputs, device=DEVICE)
    assert torch.equal(product(x)[5:6], product(x[5:6]))


def test_a_weight_takes_the_bytes_of_its_codes_scales_and_factors() -> None:
    for bits, of_scales in ((4, 2), (8, 2), (None, 4)):
        middle = 0 if bits is None else 1 << (bits - 1)
        shape = CodedShape(64, 1024, bits, 128, middle)
        expected = 64 * (1024 * (bits or 8) // 8 + 8 * of_scales + 4)
        assert packed(shape, random_weight(shape)).nbytes == expected


@pytest.mark.parametrize(
    ("bits", "inputs", "group"), [(4, 80, 40), (8, 72, 8), (4, 100, 32), (5, 128, 32), (None, 80, 40)]
)
def test_other_shapes_are_expanded(bits: int | None, inputs: int, group: int) -> None:
    assert find_packer(CodedShape(8, inputs, bits, group, 0), torch.device("cuda")) is None
