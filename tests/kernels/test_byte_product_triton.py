"""Products of many rows with activations rounded to bytes: no GPU needed, sizes kept small for Triton's
interpreter."""

from __future__ import annotations

import pytest
import torch
from arbora.kernels.linear import CodedShape, byte_cuda, coded_product_cuda
from arbora.kernels.linear.coded_product_cuda import CodedCudaPacker, CodedCudaProduct
from arbora.kernels.linear.integer import IntegerCpuPacker
from interpreted_triton import DEVICE

SCALE_ERROR = 2.0**-11
"""of scales, which are stored as float16 with integer codes"""
FP8_ERROR = 2.0**-12 if DEVICE.type == "cuda" else 2e-6
"""of a group's sum: Hopper keeps about 14 bits of it"""
SHAPES = {
    "int8": CodedShape(150, 256, 8, 128, 128),
    "int8, one group": CodedShape(70, 384, 8, 384, 128),
    "int8, groups of 32": CodedShape(65, 96, 8, 32, 128),
    "FP8, one group": CodedShape(150, 200, None, 200, 0),
    "FP8, a smaller last group": CodedShape(65, 200, None, 128, 0),
    "FP8, groups of 32": CodedShape(70, 96, None, 32, 0),
}


@pytest.fixture(autouse=True)
def of_few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coded_product_cuda, "FEW_ROWS", 1)


def random_weight(shape: CodedShape) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, scales, and the float64 [outputs, inputs] for which they stand."""
    size, groups = (shape.outputs, shape.inputs), -(-shape.inputs // shape.group)
    scales = torch.rand(shape.outputs, groups) + 0.1
    if shape.bits is None:
        codes = (torch.randn(size) * 100).clamp(-448, 448).to(torch.float8_e4m3fn)
    else:
        codes = torch.randint(0, 256, size, dtype=torch.uint8)
    wide = scales.double().repeat_interleave(shape.group, 1)[:, : shape.inputs]
    return codes, scales, (codes.double() - (0 if shape.bits is None else 128)) * wide


def packed(
    shape: CodedShape, codes: torch.Tensor, scales: torch.Tensor, bias: torch.Tensor | None = None
) -> CodedCudaProduct:
    packer = CodedCudaPacker(shape, device=DEVICE)
    packer.write(0, codes, scales)
    return packer.product(None if bias is None else bias.to(DEVICE), may_round=True)


def rounded(x: torch.Tensor, group: int, is_fp8: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The codes [rows, groups × group] and scales [groups, rows] of x, on the CPU."""
    rows, inputs = x.shape
    groups = -(-inputs // group)
    codes = torch.empty(rows, groups * group, dtype=torch.int8, device=DEVICE)
    scales = torch.empty(groups, rows, device=DEVICE)
    byte_cuda.round_kernel[(-(-rows // byte_cuda.ROUNDED_ROWS), groups)](
        x.to(DEVICE),
        codes,
        scales,
        rows,
        inputs,
        groups,
        FP8=is_fp8,
        GROUP=group,
        BLOCK_ROWS=byte_cuda.ROUNDED_ROWS,
    )
    return codes.view(torch.float8_e4m3fn if is_fp8 else torch.int8).cpu(), scales.cpu()


@pytest.mark.parametrize("is_fp8", [False, True])
def test_activations_are_rounded_to_the_nearest_code_of_their_group(is_fp8: bool) -> None:
    x = torch.randn(19, 100) * torch.logspace(-9, 9, 19)[:, None]
    codes, scales = rounded(x, 32, is_fp8)
    largest = torch.nn.functional.pad(x, (0, 28)).view(19, 4, 32).abs().amax(2)
    assert torch.allclose(scales.T, largest / (448 if is_fp8 else 127), rtol=1e-6)
    values = codes.float().view(19, 4, 32) * scales.T[..., None]
    assert torch.all(values.flatten(1)[:, 100:] == 0)
    error = (values.flatten(1)[:, :100] - x).abs()
    widths = scales.T.repeat_interleave(32, 1)[:, :100]
    # FP8 has three bits after the first one of a number, and multiples of 2⁻⁹ below 2⁻⁶.
    half = torch.maximum(x.abs() * 2.0**-4, widths * 2.0**-10) if is_fp8 else widths / 2
    assert (error <= 1.001 * half).all()


@pytest.mark.parametrize("is_fp8", [False, True])
def test_tiny_groups_count_as_zero_and_others_that_are_not_finite_have_a_scale_that_is_nan(
    is_fp8: bool,
) -> None:
    x = torch.randn(5, 64)
    x[0] = 0
    x[1] = 2.0**-110
    x[2, 3], x[3, 40] = float("nan"), float("-inf")
    codes, scales = rounded(x, 32, is_fp8)
    assert torch.all(codes[:2].float() == 0) and torch.all(scales[:, :2] == 0)
    assert scales.isnan().nonzero().tolist() == [[0, 2], [1, 3]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float32", "float16"])
@pytest.mark.parametrize("name", SHAPES)
def test_rows_are_multiplied_with_what_their_codes_stand_for(name: str, dtype: torch.dtype) -> None:
    shape = SHAPES[name]
    codes, scales, weight = random_weight(shape)
    bias = torch.randn(shape.outputs).to(dtype)
    x = (torch.randn(19, shape.inputs) * 0.01).to(dtype)
    group = coded_product_cuda.stored_group(shape)
    x_codes, x_scales = rounded(x, group, shape.bits is None)
    values = (x_codes.double() * x_scales.T.double().repeat_interleave(group, 1))[:, : shape.inputs]
    got = packed(shape, codes, scales, bias)(x.to(DEVICE)).cpu()
    assert got.dtype == dtype
    expected = values @ weight.T + bias.double()
    exact = FP8_ERROR if shape.bits is None else SCALE_ERROR
    bound = 1.01 * exact * (values.abs() @ weight.abs().T) + 1e-6
    bound += 2.0**-10 * expected.abs() if dtype == torch.float16 else 0
    assert ((got.double() - expected).abs() <= bound).all()


def test_any_number_of_tiles_covers_all_rows_and_outputs() -> None:
    shape = CodedShape(140, 64, 8, 32, 128)
    codes, scales, _ = random_weight(shape)
    product, x = packed(shape, codes, scales), torch.randn(131, 64, device=DEVICE)
    together = product(x)
    assert together.shape == (131, 140)
    for row in (0, 127, 128, 130):  # a row's bits don't depend on the others
        pair = x[[row, 0]]
        assert torch.equal(product(pair)[0], together[row])


def test_a_row_that_is_not_finite_leaves_the_others_as_they_are() -> None:
    shape = SHAPES["int8"]
    codes, scales, _ = random_weight(shape)
    product, x = packed(shape, codes, scales), torch.randn(5, shape.inputs, device=DEVICE)
    expected = product(x)
    x[3, 7] = float("nan")
    got = product(x)
    assert got[3].isnan().all()
    assert torch.equal(got[[0, 1, 2, 4]], expected[[0, 1, 2, 4]])


def test_int8_products_are_those_of_a_cpu() -> None:
    shape = SHAPES["int8"]
    codes, scales, weight = random_weight(shape)
    packer = IntegerCpuPacker(CodedShape(shape.outputs, shape.inputs, 8, 128, 128))
    packer.write(0, codes, scales, None)
    x = torch.randn(20, shape.inputs)
    got = packed(shape, codes, scales)(x.to(DEVICE)).cpu()
    # Both round activations to the same codes; only sums of groups and scales are rounded differently.
    assert (got - packer.product(None)(x)).abs().max() < 1e-6 * (x.abs() @ weight.abs().T.float()).max()


def test_without_permission_activations_are_not_rounded() -> None:
    shape = SHAPES["int8"]
    codes, scales, weight = random_weight(shape)
    packer = CodedCudaPacker(shape, device=DEVICE)
    packer.write(0, codes, scales)
    x = torch.randn(3, shape.inputs)
    got = packer.product(None)(x.to(DEVICE)).cpu().double()
    bound = 1.01 * SCALE_ERROR * (x.double().abs() @ weight.abs().T) + 1e-4
    assert ((got - x.double() @ weight.T).abs() <= bound).all()


@pytest.mark.parametrize(
    ("is_fp8", "capability", "rows"),
    [(True, (9, 0), 128), (True, (10, 0), 64), (False, (10, 0), 128), (True, (12, 0), 128)],
)
def test_a_tile_has_fewer_rows_where_it_would_spill_registers(
    is_fp8: bool, capability: tuple[int, int], rows: int
) -> None:
    assert byte_cuda.tile_rows(is_fp8, capability) == rows


@pytest.mark.parametrize(
    ("shape", "capability", "taken"),
    [
        (SHAPES["int8"], (8, 0), True),
        (SHAPES["FP8, one group"], (8, 0), False),
        (SHAPES["FP8, one group"], (8, 9), True),
        (SHAPES["FP8, one group"], (10, 0), True),
        (CodedShape(32, 64, 8, 16, 128), (9, 0), False),
        (CodedShape(32, 64, 8, 32, None), (9, 0), False),
        (CodedShape(32, 64, 4, 32, 8), (9, 0), False),
    ],
)
def test_bytes_are_multiplied_where_the_gpu_has_instructions_for_them(
    shape: CodedShape, capability: tuple[int, int], taken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    weight = CodedCudaPacker(shape, device=DEVICE).product(None)._weight
    assert byte_cuda.takes(weight, torch.device("cuda")) == taken
