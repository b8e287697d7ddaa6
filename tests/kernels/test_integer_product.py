"""Quantized products against float64, and the independence of a row's bits."""

import json
import platform
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from arbora.kernels.common import amx
from arbora.kernels.linear import CodedShape, Linear, find_packer
from arbora.kernels.linear.integer import (
    AMX_ROWS,
    IntegerCpuPacker,
    IntegerCpuProduct,
    groups_of_activations,
    stored_group,
)
from arbora.kernels.linear.integer_cpu import AMX_BFLOAT16, AMX_BYTES, HALVED_ROWS, NO_AMX
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from lesser_processor import features_without, output_without
from quantized_probe import digest
from sapphire_rapids import output_for_sapphire_rapids

CPU = torch.device("cpu")
PROBE = Path(__file__).parents[1] / "support" / "quantized_probe.py"
WIDE = ("avx512", "avx10", "evex512", "amx")
"""how the names of features with vectors of 512 bits begin"""
ONE_ROUNDING = {torch.float32: 2**-23, torch.bfloat16: 2**-8, torch.float16: 2**-11}


@dataclass(frozen=True)
class Case:
    shape: CodedShape
    product: IntegerCpuProduct
    codes: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor
    """float32 [outputs, groups], also if the shape has a zero"""
    bias: torch.Tensor | None


def make_case(
    shape: CodedShape, seed: int = 0, biased: bool = True, step: int = 96, batch_invariant: bool = False
) -> Case:
    assert shape.bits is not None
    random = torch.Generator().manual_seed(seed)
    sizes = (shape.outputs, shape.inputs // shape.group)
    codes = torch.randint(0, 1 << shape.bits, (shape.outputs, shape.inputs), generator=random).byte()
    scales = (torch.rand(sizes, generator=random) + 0.1) / (1 << shape.bits)
    offsets = -torch.rand(sizes, generator=random) if shape.zero is None else -shape.zero * scales
    factors = None
    if shape.has_factors:
        factors = (torch.rand(2, shape.outputs, shape.inputs // 256, generator=random) + 0.1).half().float()
        factors[0, :, 0] = 0
        scales, offsets = (
            torch.randint(-128, 128, sizes, generator=random) * each.repeat_interleave(256 // shape.group, 1)
            for each in factors / (128 << shape.bits)
        )
        factors = factors[: 2 if shape.zero is None else 1] / (128 << shape.bits)
        offsets = offsets if shape.zero is None else -shape.zero * scales
    bias = torch.randn(shape.outputs, generator=random) if biased else None
    packer = IntegerCpuPacker(shape)
    for begin in range(0, shape.outputs, step):
        part = slice(begin, begin + step)
        of_part = None if factors is None else factors[:, part]
        packer.write(begin, codes[part], scales[part], offsets[part] if shape.zero is None else None, of_part)
    return Case(shape, packer.product(bias, batch_invariant), codes, scales, offsets, bias)


def quantized(x: torch.Tensor, group: int) -> torch.Tensor:
    """float64 activations after the product's rounding to 8 bits."""
    parts = x.float().view(len(x), -1, group)
    largest = parts.abs().amax(dim=2, keepdim=True)
    inverse = torch.where(largest < 2**-100, 0.0, torch.tensor(127.0) / largest)
    return ((parts * inverse).round().double() * (largest / 127).double()).view(len(x), -1)


def activations(rows: int, inputs: int, seed: int, dtype: torch.dtype) -> torch.Tensor:
    """Normal values with an outlier of 1000 in each row, and groups that are 0."""
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, inputs, generator=random)
    x[torch.arange(rows), torch.randint(0, inputs, (rows,), generator=random)] *= 1000
    x.view(rows, -1, 16)[torch.rand(rows, inputs // 16, generator=random) < 0.1] = 0
    return x.to(dtype)


shapes_with_factors = st.builds(
    lambda outputs, bits, group, blocks, given: CodedShape(
        outputs, 256 * blocks, bits, group, None if given else 1 << (bits - 1), has_factors=True
    ),
    st.integers(1, 100),
    st.sampled_from([4, 5, 6]),
    st.sampled_from([16, 32]),
    st.integers(1, 3),
    st.booleans(),
)
shapes = shapes_with_factors | st.builds(
    lambda outputs, bits, group, groups, given: CodedShape(
        outputs, group * groups, bits, group, None if given else 1 << (bits - 1)
    ),
    st.integers(1, 200),
    st.sampled_from([4, 8]),
    st.sampled_from([16, 32, 48, 64, 80, 96, 128, 192, 256]),
    st.integers(1, 5),
    st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(
    shapes, st.integers(1, 150), st.sampled_from(list(ONE_ROUNDING)), st.booleans(), st.integers(0, 2**32 - 1)
)
def test_a_batch_invariant_product_agrees_with_float64(
    shape: CodedShape, rows: int, dtype: torch.dtype, biased: bool, seed: int
) -> None:
    case = make_case(shape, seed, biased, batch_invariant=True)
    x = activations(rows, shape.inputs, seed, dtype)
    weight = case.product.rows(torch.arange(shape.outputs)).double()
    codes = quantized(x, stored_group(shape.group) * groups_of_activations(shape))
    expected = codes @ weight.T
    offsets = case.offsets.repeat_interleave(shape.group, 1).double().abs()
    magnitude = codes.abs() @ (weight.abs() + 2 * offsets).T  # the codes and the offsets are multiplied apart
    if case.bias is not None:
        expected, magnitude = expected + case.bias, magnitude + case.bias.abs()
    y = case.product(x)
    assert y.dtype == dtype
    bound = ONE_ROUNDING[dtype] * expected.abs() + magnitude * 2**-20  # 16 float32 roundings
    assert ((y.double() - expected).abs() <= bound).all()


@pytest.mark.parametrize("bits, has_factors", [(4, False), (8, False), (4, True), (5, True), (6, True)])
@pytest.mark.parametrize("group", [16, 32, 48, 128])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_codes_and_activations_have_exact_sums(
    bits: int, has_factors: bool, group: int, sign: int
) -> None:
    group = group // 3 * 4 if has_factors and group == 48 else group
    inputs = 256 if has_factors else 4 * group
    shape = CodedShape(32, inputs, bits, group, 0, has_factors)
    codes = torch.full((32, shape.inputs), (1 << bits) - 1, dtype=torch.uint8)
    packer = IntegerCpuPacker(shape)
    packer.write(0, codes, torch.ones(32, shape.groups), None, torch.ones(1, 32, 1) if has_factors else None)
    for rows in (1, 4, 6):
        x = torch.full((rows, shape.inputs), 127.0 * sign)
        y = packer.product(None, batch_invariant=True)(x)
        assert (y == sign * 127 * ((1 << bits) - 1) * shape.inputs).all()


@pytest.mark.parametrize("bits", [4, 5, 6])
@pytest.mark.parametrize("given", [False, True], ids=["zero", "offsets"])
@pytest.mark.parametrize("group", [16, 32])
def test_stored_weights_with_factors_are_exactly_the_given_ones(bits: int, given: bool, group: int) -> None:
    zero = None if given else 1 << (bits - 1)
    case = make_case(CodedShape(77, 512, bits, group, zero, has_factors=True), step=20)
    scales, offsets = (each.double().repeat_interleave(group, 1) for each in (case.scales, case.offsets))
    expected = case.codes.double() * scales + offsets
    weights = case.product.rows(torch.arange(77)).double()
    bound = (case.codes.double() * scales).abs() + offsets.abs()
    assert ((weights - expected).abs() <= bound * 2**-22).all()
    file_bits = bits + 16 / 256 + 8 / group if zero is not None else bits + 32 / 256 + 16 / group
    stored = case.product.nbytes - 4 * 96 - 4 * 96  # without the outputs' factors and the bias
    assert stored == 96 * 512 * file_bits / 8


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("given", [False, True], ids=["zero", "offsets"])
def test_stored_weights_are_the_given_ones_but_for_the_rounding_of_scales(bits: int, given: bool) -> None:
    case = make_case(CodedShape(77, 96, bits, 32, None if given else 1 << (bits - 1)), step=20)
    scales, offsets = (each.repeat_interleave(32, 1) for each in (case.scales, case.offsets))
    parts = case.codes.float() * scales
    ids = torch.tensor([76, 0, 33, 33])
    expected, bound = (parts + offsets)[ids], (parts.abs() + offsets.abs())[ids] * 2**-11 + 1e-6
    assert ((case.product.rows(ids) - expected).abs() <= bound).all()


@settings(max_examples=60, deadline=None)
@given(shapes, st.integers(AMX_ROWS[AMX_BFLOAT16], 150), st.sampled_from(list(ONE_ROUNDING)), st.booleans())
def test_a_product_of_many_rows_agrees_with_float64(
    shape: CodedShape, rows: int, dtype: torch.dtype, biased: bool
) -> None:
    case = make_case(shape, 1, biased)
    x = activations(rows, shape.inputs, 1, dtype)
    weight = case.product.rows(torch.arange(shape.outputs))
    bias = 0 if case.bias is None else case.bias.double()
    expected = x.double() @ weight.double().T + bias
    rounding = (2**-7 if case.product.many_rows == AMX_BFLOAT16 else 2**-6) * x.double().norm(dim=1)
    bound = ONE_ROUNDING[dtype] * expected.abs() + rounding[:, None] * weight.double().norm(dim=1)
    assert ((case.product(x).double() - expected).abs() <= bound).all()


@settings(max_examples=60, deadline=None)
@given(shapes, st.integers(2, 200), st.booleans(), st.data())
def test_a_rows_bits_depend_neither_on_other_rows_nor_on_threads(
    shape: CodedShape, rows: int, batch_invariant: bool, data: st.DataObject
) -> None:
    product = make_case(shape, batch_invariant=batch_invariant).product
    x = activations(rows, shape.inputs, 1, torch.float32)
    y = product(x)
    least = AMX_ROWS[AMX_BFLOAT16] if product.many_rows == AMX_BFLOAT16 else 1
    assume(rows >= least)
    begin = data.draw(st.integers(0, rows - least))
    end = data.draw(st.integers(begin + least, rows))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(data.draw(st.integers(1, 3)))
        assert torch.equal(product(x[begin:end]), y[begin:end])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "lacking",
    [WIDE, (*WIDE, "avxvnni")],
    ids=["without AVX-512", "without AVX-512 and AVX-VNNI"],
)
def test_code_for_other_processors_gives_the_same_bits(lacking: tuple[str, ...]) -> None:
    width = 256 if features_without(lacking).get("avxvnni") else 0
    assert json.loads(output_without(lacking, [str(PROBE)])) == [width, digest()]


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="AMX is a unit of x86")
def test_code_for_processors_with_amx_uses_it(tmp_path: Path) -> None:
    """On any machine the code is compiled for a processor with AMX. A machine without AMX cannot run it, but
    shows whether it compiles and which instructions it has."""
    program = """
import json
from arbora.kernels.common.amx import release_tiles
from arbora.kernels.linear.integer_cpu import multiply_widened
from arbora.kernels.linear.integer_panels import multiply_panel, start_panels
from numba import njit, types
number, address = types.int64, types.CPointer(types.int64)
def stop():
    release_tiles()
found = []
for function, kinds in (
    (start_panels, (number,)),
    (njit(stop), ()),
    (multiply_panel, (address, number, number, types.boolean, types.int32, number, number, number)),
    (multiply_panel, (address, number, number, types.boolean, types.float32, number, number, number)),
    (multiply_widened, (address, number, number, types.uint16, types.float32)),
    (multiply_widened, (address, number, number, types.int64, types.int32)),
):
    function.compile(kinds)
    found.append(function.inspect_asm(function.signatures[-1]))
print(json.dumps(found))
"""
    printed = json.loads(output_for_sapphire_rapids(program, tmp_path))
    expected = [
        ("ldtilecfg",),
        ("tilerelease",),
        *[("tileloadd", "tdpbssd", "tdpbsud", "tilestored")] * 2,
        *[("vcvtne2ps2bf16", "tileloadd", "tdpbf16ps", "tilestored")] * 2,
    ]
    for assembly, names in zip(printed, expected, strict=True):
        assert all(re.search(rf"\b{name}\b", assembly) for name in names), names


@pytest.mark.parametrize(
    "shape, way, invariant",
    [
        (CodedShape(8, 128, 8, 128, 128), AMX_BYTES, AMX_BYTES),
        (CodedShape(8, 256, 4, 256, None), AMX_BYTES, AMX_BYTES),
        (CodedShape(8, 128, 8, 128, 3), AMX_BFLOAT16, NO_AMX),
        (CodedShape(8, 128, 4, 32, 8), AMX_BFLOAT16, NO_AMX),
        (CodedShape(8, 96, 8, 16, None), AMX_BFLOAT16, NO_AMX),
        (CodedShape(8, 112, 4, 16, 8), NO_AMX, NO_AMX),
    ],
)
def test_many_rows_are_multiplied_by_amx_if_the_processor_has_it(
    shape: CodedShape, way: int, invariant: int
) -> None:
    ways = [IntegerCpuPacker(shape).product(None, each).many_rows for each in (False, True)]
    assert ways == ([way, invariant] if amx.available() else [NO_AMX, NO_AMX])


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("rows", [HALVED_ROWS, 85])
@pytest.mark.parametrize("bits, group", [(8, 128), (4, 32)])
def test_halved_rows_have_the_bits_of_one_thread(bits: int, group: int, rows: int, threads: int) -> None:
    product = make_case(CodedShape(1000, 256, bits, group, 8), batch_invariant=True).product
    x = activations(rows, 256, 1, torch.bfloat16)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = product(x)
        torch.set_num_threads(threads)
        assert product._halves(rows) == (product.many_rows == NO_AMX)
        for _ in range(20):  # the threads share the tiles differently
            assert torch.equal(product(x), expected)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "outputs, inputs, rows, part",
    [
        (1024, 1024, 512, 512),
        (1024, 3072, 340, 340),
        (1024, 3072, 342, 171),  # 170 without halves
        (4096, 4096, 256, 256),
        (4096, 4096, 257, 86),  # halves of 129 rows would have too many outputs
        (8192, 4096, 256, 128),
        (1024, 8192, 0, 0),
    ],
)
def test_twice_as_many_rows_are_multiplied_at_a_time_if_they_are_halved(
    outputs: int, inputs: int, rows: int, part: int
) -> None:
    shape = CodedShape(outputs, inputs, 4, inputs, 8)
    product = make_case(shape, batch_invariant=True, step=outputs).product
    if product.many_rows != NO_AMX:
        assert product._part(rows) <= product._rows
        return
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert product._part(rows) == part
        torch.set_num_threads(1)
        assert product._part(rows) <= product._rows
    finally:
        torch.set_num_threads(before)


def test_more_rows_than_are_multiplied_at_a_time_have_the_bits_of_each_alone() -> None:
    product = make_case(CodedShape(40, 8192, 4, 32, 8), batch_invariant=True).product
    x = activations(150, 8192, 1, torch.bfloat16)
    y = product(x)
    assert all(torch.equal(product(row[None])[0], result) for row, result in zip(x, y, strict=True))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("given", [False, True], ids=["zero", "offsets"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("rows, group", [(3, 32), (20, 16), (70, 32), (70, 64)])
def test_a_row_with_nan_or_infinity_has_no_finite_result_and_changes_no_other_row(
    rows: int, group: int, value: float, given: bool, bits: int
) -> None:
    product = make_case(CodedShape(40, 64, bits, group, None if given else 1 << (bits - 1))).product
    x = torch.randn(rows, 64)
    y = product(x)
    x[1, 40] = value
    changed = product(x)
    assert not changed[1].isfinite().any()
    keep = torch.arange(rows) != 1
    assert torch.equal(changed[keep], y[keep])


@pytest.mark.parametrize("wrong", [-1, 40])
def test_only_ids_of_outputs_have_rows(wrong: int) -> None:
    product = make_case(CodedShape(40, 64, 8, 32, 128)).product
    assert product.rows(torch.tensor([], dtype=torch.int64)).shape == (0, 64)
    with pytest.raises(AssertionError, match="40 outputs"):
        product.rows(torch.tensor([3, wrong]))


@pytest.mark.parametrize("dtype", list(ONE_ROUNDING))
def test_columns_may_be_stored_in_another_order(dtype: torch.dtype) -> None:
    order = torch.randperm(96)
    shape = CodedShape(64, 96, 8, 32, 128)
    plain = make_case(shape)
    packer = IntegerCpuPacker(shape, order)
    packer.write(0, plain.codes, plain.scales, None)
    product = packer.product(plain.bias)
    x = torch.randn(500, 192).to(dtype)[:, ::2]
    assert torch.equal(product(x), plain.product(x[:, order]))
    ids = torch.tensor([5, 63])
    assert torch.equal(product.rows(ids)[:, order], plain.product.rows(ids))


def test_no_row_gives_no_row() -> None:
    assert make_case(CodedShape(40, 64, 8, 32, 128)).product(torch.empty(0, 64)).shape == (0, 40)


def test_a_linear_has_the_sizes_of_its_quantized_product() -> None:
    case = make_case(CodedShape(40, 64, 4, 32, 8))
    linear = Linear.quantized(case.product)
    x = torch.randn(3, 64).bfloat16()
    assert (linear.in_features, linear.out_features) == (64, 40)
    assert torch.equal(linear(x), case.product(x))


@pytest.mark.parametrize(
    "bits, group, zero, bits_a_weight",
    [(4, 32, 8, 4.5), (4, 32, None, 5), (4, 128, 8, 4.125), (8, 1024, 128, 8.125)],
)
def test_a_weight_takes_few_bits(bits: int, group: int, zero: int | None, bits_a_weight: float) -> None:
    shape = CodedShape(4096, 1024, bits, group, zero)
    nbytes = IntegerCpuPacker(shape).product(None).nbytes
    assert nbytes == 4096 * 1024 * bits_a_weight / 8 + 4096 * 4


@pytest.mark.parametrize(
    "shape",
    [CodedShape(8, 40, 4, 40, 8), CodedShape(8, 64, 3, 32, 4), CodedShape(8, 64, 8, 48, 4)],
)
def test_other_groups_and_bits_are_not_taken(shape: CodedShape) -> None:
    assert find_packer(shape, CPU) is None
