"""int8 and FP8 cells in the CUDA kernels: written exactly, and read as a float64 reference reads them.

Needs no GPU: without one the kernels run in Triton's interpreter.
"""

import pytest
import torch
from arbora.kernels import reference
from arbora.kernels.attention import cuda as attention_triton
from arbora.kernels.common.codes_cuda import BFLOAT16_BITS, BFLOAT16_UNIT, FP8_UNIT
from arbora.kernels.pages import cuda as pages_triton
from arbora.kernels.pages.cells import FP8, CellFormat
from arbora.kernels.rotary import HeadNorms
from arbora.kernels.rotary import cuda as rotary_triton
from attention_cases import TREE, AttentionCase, Sharing, Step, build_case
from interpreted_triton import DEVICE

STORED = [torch.int8, FP8]
TOLERANCE = {torch.float32: 2e-5, torch.float16: 3e-3}
MIXED = Step(
    16, groups=(Sharing(3, 2), TREE), decode_lengths=(1, 33, 90), chunks=((20, 0), (1, 40), (35, 50))
)
STEPS = {
    "pages of 16 tokens": MIXED,
    "pages of one token": Step(1, groups=(Sharing(2, 3),), decode_lengths=(5,), chunks=((7, 9),)),
    "pages of 64 tokens": Step(64, groups=(Sharing(2, 1),), decode_lengths=(130,), chunks=((70, 10),)),
}
HEADS_AND_SIZES = [((4, 1), 64), ((5, 1), 128), ((7, 7), 96), ((8, 1), 80)]
EDGES = [2.0**-9, 2.0**-10, 3 * 2.0**-10, 2.0**-6, 0.017, 17.0, 19.0, 239.9, 447.9, 448.0]
"""around the steps of E4M3 for a cell whose scale is 1"""


def assert_attention_matches(case: AttentionCase) -> None:
    case = case.to(DEVICE)
    got, expected = case.attend(attention_triton.paged_attention), case.attend(reference.paged_attention)
    tolerance = TOLERANCE[case.q.dtype]
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("name", STEPS)
def test_attention_reads_scattered_pages_of_any_size(name: str, stored: torch.dtype) -> None:
    assert_attention_matches(build_case(STEPS[name], (4, 2), 32, None, torch.float32, True, 1, stored))


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize(("heads", "head_dim"), HEADS_AND_SIZES)
def test_head_counts_and_sizes_may_be_any_number(
    heads: tuple[int, int], head_dim: int, stored: torch.dtype
) -> None:
    step = Step(16, (Sharing(2, 2),), (1, 33), ((20, 30),))
    assert_attention_matches(build_case(step, heads, head_dim, None, torch.float32, True, 4, stored))


@pytest.mark.parametrize("stored", STORED)
def test_a_window_hides_older_tokens(stored: torch.dtype) -> None:
    assert_attention_matches(build_case(MIXED, (4, 2), 32, 17, torch.float32, True, 3, stored))


@pytest.mark.parametrize("stored", STORED)
def test_keys_may_be_split(stored: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_triton, "MIN_SPLIT", 64)
    monkeypatch.setattr(attention_triton, "processors", lambda device: 64)
    step = Step(16, groups=(Sharing(2, 3),), decode_lengths=(300,), chunks=((20, 200),))
    assert_attention_matches(build_case(step, (4, 1), 32, None, torch.float32, True, 5, stored))


def test_the_bits_of_fp8_codes_become_bfloat16_numbers() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    values = codes.view(FP8).float()
    finite = values.isfinite()
    # Triton's interpreter can't multiply bfloat16, so these are the kernel's operations in PyTorch.
    moved = (codes.view(torch.int8).to(torch.int16) << 4) & BFLOAT16_BITS.value
    got = moved.view(torch.bfloat16) * BFLOAT16_UNIT.value
    assert got.dtype == torch.bfloat16
    assert torch.equal(got.float()[finite] * FP8_UNIT.value, values[finite])


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("magnitude", [1e-6, 1.0, 30.0])
def test_float16_activations_read_values_of_any_magnitude(magnitude: float, stored: torch.dtype) -> None:
    case = build_case(MIXED, (4, 2), 64, None, torch.float16, False, 2, stored)
    scales = case.kv.view(torch.float32)[..., -1]
    scales[1] *= magnitude
    expected = reference.paged_attention(case.q, case.kv, case.batch, case.scale).double()
    case = case.to(DEVICE)
    got = attention_triton.paged_attention(case.q, case.kv, case.batch, case.scale).cpu().double()
    # A float16 below 2⁻¹⁴ is off by up to 2⁻²⁵.
    assert ((got - expected).abs() <= 3e-3 * magnitude + 2.0**-24).all()


@pytest.mark.parametrize("stored", STORED)
def test_pages_of_other_rows_are_not_read(stored: torch.dtype) -> None:
    case = build_case(MIXED, (4, 2), 32, None, torch.float32, True, 6, stored)
    expected = reference.paged_attention(case.q, case.kv, case.batch, case.scale)
    used = torch.zeros(case.kv.shape[2] * 16, dtype=torch.bool)
    for table, length in zip(case.batch.page_tables, case.batch.kv_lengths.tolist(), strict=True):
        at = torch.arange(length)
        used[torch.from_numpy(table).long()[at // 16] * 16 + at % 16] = True
    case.kv.view(torch.int8).flatten(2, 3)[:, :, ~used] = -1  # NaN scales, and NaN codes of FP8
    case = case.to(DEVICE)
    got = attention_triton.paged_attention(case.q, case.kv, case.batch, case.scale)
    torch.testing.assert_close(got.cpu(), expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("stored", STORED)
def test_a_broken_cell_is_visible_in_the_row_that_sees_it(stored: torch.dtype, part: int) -> None:
    case = build_case(Step(1, (), (100, 40), ((5, 60),)), (4, 1), 48, None, torch.float32, False, 8, stored)
    page = case.batch.page_tables[0][70]
    broken = CellFormat(stored).encode(torch.full((1, 48), float("inf")))
    case.kv.view(torch.int8)[part, :, page] = broken.view(torch.int8)
    case = case.to(DEVICE)
    got = attention_triton.paged_attention(case.q, case.kv, case.batch, case.scale)
    assert got[0].isnan().all() and not got[1:].isnan().any()


def written(values: torch.Tensor, stored: torch.dtype) -> torch.Tensor:
    """The cells that the kernel makes of values [tokens, head_dim], as values and as unrotated keys: int8
    [2, tokens, cell]."""
    tokens, head_dim = values.shape
    shape = (2, 1, tokens, 1, CellFormat(stored).elements(head_dim))
    kv = torch.zeros(shape, dtype=torch.int8, device=DEVICE).view(stored)
    angles = torch.cat((torch.ones(1, head_dim // 2), torch.zeros(1, head_dim // 2)), dim=1).to(DEVICE)
    places = torch.arange(tokens, device=DEVICE)
    one = values[:, None].to(DEVICE)
    rotary_triton.rotary_write_kv(one.clone(), one.clone(), one.clone(), angles, places * 0, places, kv)
    return kv.view(torch.int8).view(2, tokens, -1).cpu()


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("head_dim", [30, 64, 128])
def test_cells_are_those_of_the_definition_bit_by_bit(head_dim: int, stored: torch.dtype) -> None:
    values = torch.randn(40, head_dim) * torch.logspace(-12, 12, 40)[:, None]
    values[5, 3], values[6, 4], values[7, 5] = float("nan"), float("inf"), float("-inf")
    values[8], values[9], values[10] = 0.0, 1e-40, 1e-31
    values[11] = torch.arange(head_dim).clamp(max=127) - 0.5
    values[11, 0] = 127.0
    values[12, :10], values[12, 10:20] = torch.tensor(EDGES), -torch.tensor(EDGES)
    expected = CellFormat(stored).encode(values).view(torch.int8)
    assert torch.equal(written(values, stored), expected.expand(2, *expected.shape))


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("half", [24, 16], ids=["whole head", "part of the head"])
@pytest.mark.parametrize("normal", [False, True], ids=["as they are", "normalised"])
def test_rotated_keys_and_values_match_the_reference(normal: bool, half: int, stored: torch.dtype) -> None:
    qkv = torch.randn(6, 8, 48, device=DEVICE)
    expected_qkv = qkv.clone()
    angles = torch.rand(30, half, device=DEVICE) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
    slots = torch.randperm(4 * 16, device=DEVICE)[:6]
    slots[2] = -1
    at = (cos_sin, torch.randint(0, 30, (6,), device=DEVICE), slots)
    cells = CellFormat(stored)
    kv = cells.encode(torch.randn(2, 2, 4, 16, 48, device=DEVICE))
    expected_kv = kv.clone()
    weights = torch.rand(2, 48, device=DEVICE)
    norms = HeadNorms(weights[0], weights[1], 1e-6) if normal else None
    q, k, v = torch.split(qkv, [4, 2, 2], dim=1)
    rotary_triton.rotary_write_kv(q, k, v, *at, kv, norms)
    q, k, v = torch.split(expected_qkv, [4, 2, 2], dim=1)
    reference.rotary_write_kv(q, k, v, *at, expected_kv, norms)
    torch.testing.assert_close(qkv[:, :4], expected_qkv[:, :4], atol=2e-5, rtol=2e-5)
    got, expected = (cells.decode(each, 48, torch.float32) for each in (kv, expected_kv))
    # A last bit of a rotated key can choose the neighbouring code.
    step = expected.abs().amax(-1, keepdim=True) / (127 if stored == torch.int8 else 14)
    assert ((got - expected).abs() <= 1.01 * step).all()
    assert ((got - expected).abs() > 1e-4).float().mean() < 0.002


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("stored", STORED)
def test_copied_pages_keep_codes_and_scales(stored: torch.dtype, page_size: int) -> None:
    kvs = [CellFormat(stored).encode(torch.randn(2, 2, 7, page_size, 48, device=DEVICE)) for _ in range(2)]
    expected = [kv.clone() for kv in kvs]
    pages_triton.copy_pages(kvs, kvs[0].shape[3], [0, 6], [5, 2])
    reference.copy_pages(expected, kvs[0].shape[3], [0, 6], [5, 2])
    for got, want in zip(kvs, expected, strict=True):
        assert torch.equal(got.view(torch.int8), want.view(torch.int8))


@pytest.mark.parametrize("stored", STORED)
def test_pages_come_back_from_host_memory_bit_by_bit(stored: torch.dtype) -> None:
    kvs = [CellFormat(stored).encode(torch.randn(2, 2, 7, 1, 48, device=DEVICE)) for _ in range(2)]
    expected = [kv.clone() for kv in kvs]
    memory = torch.zeros(3, 2, 4, 52, dtype=torch.int8)
    memory = (memory.pin_memory() if DEVICE.type == "cuda" else memory).view(stored)
    moves = pages_triton.CudaMoves(kvs, [6, 1], memory, [0, 2])
    moves.save()
    for kv in kvs:
        kv.view(torch.int8)[:, :, [6, 1]] = -1
    moves.load(range(2))
    for got, want in zip(kvs, expected, strict=True):
        assert torch.equal(got.view(torch.int8), want.view(torch.int8))
