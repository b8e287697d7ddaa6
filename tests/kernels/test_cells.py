"""Cells of the KV cache: what they store, exactly, and attention over int8 cells in float64."""

import pytest
import torch
from arbora.kernels.attention import paged_attention
from arbora.kernels.common import amx, bfloat16_dots
from arbora.kernels.pages.cells import CellFormat
from arbora.kernels.rotary import rotary_write_kv
from attention_cases import TREE, AttentionCase, Sharing, Step, build_case

INT8 = CellFormat(torch.int8)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
STEP = Step(16, groups=(Sharing(4, 12), TREE), decode_lengths=(900, 170), chunks=((64, 300), (100, 0)))


def written(values: torch.Tensor) -> torch.Tensor:
    """The values that the kernel stored as a value and, unrotated, as a key: [2, tokens, head_dim]."""
    tokens, head_dim = values.shape
    kv = torch.zeros((2, 1, tokens, 1, INT8.elements(head_dim)), dtype=torch.int8)
    angles = torch.cat((torch.ones(1, head_dim // 2), torch.zeros(1, head_dim // 2)), dim=1)
    places = torch.arange(tokens)
    one = values[:, None]
    rotary_write_kv(one.clone(), one.clone(), one.clone(), angles, places * 0, places, kv)
    return INT8.decode(kv, head_dim, torch.float32).view(2, tokens, head_dim)


@pytest.mark.parametrize("head_dim", [30, 64, 128])
def test_a_cell_has_a_byte_for_each_value_and_a_float32(head_dim: int) -> None:
    assert INT8.bytes(head_dim) == (head_dim + 3) // 4 * 4 + 4
    assert CellFormat(torch.bfloat16).bytes(head_dim) == 2 * head_dim


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [30, 64, 128])
@pytest.mark.parametrize("magnitude", [1e-4, 1.0, 3e4])
def test_a_value_is_off_by_at_most_half_a_step(magnitude: float, head_dim: int, dtype: torch.dtype) -> None:
    values = (torch.randn(50, head_dim).clamp(-2, 2) * magnitude).to(dtype)
    step = values.float().abs().amax(-1, keepdim=True) / 127
    assert ((written(values) - values.float()).abs() <= 0.5001 * step).all()
    assert ((INT8.decode(INT8.encode(values), head_dim, torch.float32) - values).abs() <= 0.5001 * step).all()


def test_whole_numbers_up_to_127_are_exact_and_halves_go_to_the_even_neighbour() -> None:
    values = torch.arange(-127, 129).clamp(max=127).float()[None]
    assert torch.equal(written(values)[0], values)
    halves = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -126.5, 126.5]])
    expected = torch.tensor([[127.0, 0.0, 2.0, 2.0, 0.0, -2.0, -126.0, 126.0]])
    assert torch.equal(written(halves)[1], expected)
    assert torch.equal(INT8.decode(INT8.encode(halves), 8, torch.float32), expected)


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_no_finite_number_makes_its_own_cell_nan(broken: float) -> None:
    values = torch.randn(9, 64)
    values[4, 17] = broken
    for kept in (written(values), INT8.decode(INT8.encode(values), 64, torch.float32)):
        assert kept.isnan().all(-1).flatten().nonzero().flatten().tolist() in ([4, 13], [4])
        assert kept.isnan().sum() == 64 * (kept.numel() // values.numel())


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-40, 1e-31])
def test_cells_of_the_smallest_values_are_zeros(value: float) -> None:
    values = torch.full((1, 64), value)
    assert torch.equal(written(values), torch.zeros(2, 1, 64))


def in_float64(case: AttentionCase) -> torch.Tensor:
    cells = INT8.decode(case.kv, case.q.shape[2], torch.float64).flatten(2, 3)
    outputs, first = [], 0
    rows = zip(case.batch.query_lengths, case.batch.kv_lengths, case.batch.page_tables, strict=True)
    for count, length, table in rows:
        at = torch.arange(int(length))
        slots = torch.from_numpy(table).long()[at // 16] * 16 + at % 16
        repeat = case.q.shape[1] // case.kv.shape[1]
        keys, values = cells[:, :, slots].repeat_interleave(repeat, dim=1)
        q = case.q[first : first + count].double().transpose(0, 1)
        hidden = at[None] > torch.arange(int(length - count), int(length))[:, None]
        scores = (q @ keys.transpose(1, 2) * case.scale).masked_fill(hidden, float("-inf"))
        outputs.append((scores.softmax(-1) @ values).transpose(0, 1))
        first += int(count)
    return torch.cat(outputs)


@pytest.mark.parametrize("way", ["items", "tiles without AMX", "tiles"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_over_int8_cells_is_that_of_their_values(
    dtype: torch.dtype, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "items":
        monkeypatch.setattr(bfloat16_dots, "available", lambda: False)
    if way != "tiles":
        monkeypatch.setattr(amx, "available", lambda: False)
    case = build_case(STEP, (16, 4), 64, None, dtype, True, 5, torch.int8)
    got = paged_attention(case.q, case.kv, case.batch, case.scale)
    off = (got.double() - in_float64(case)).abs().max()
    assert off < {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_over_int8_cells_is_near_that_over_the_values_before(dtype: torch.dtype) -> None:
    full, small = (
        build_case(STEP, (16, 4), 64, None, dtype, True, 5, stored) for stored in (dtype, torch.int8)
    )
    one, two = (paged_attention(case.q, case.kv, case.batch, case.scale).float() for case in (full, small))
    assert (one - two).abs().mean() < 2e-3 and (one - two).abs().max() < 5e-2


@pytest.mark.parametrize("tiles", [True, False])
@pytest.mark.parametrize("heads", [(8, 1), (2, 2)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("part", [0, 1])
def test_a_broken_cell_is_visible_in_the_rows_that_see_it(
    part: int, dtype: torch.dtype, heads: tuple[int, int], tiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not tiles:
        monkeypatch.setattr(bfloat16_dots, "available", lambda: False)
    case = build_case(Step(1, (), (100, 40), ((5, 60),)), heads, 48, None, dtype, False, 8, torch.int8)
    page = case.batch.page_tables[0][70]
    case.kv[part, :, page] = INT8.encode(torch.full((1, 48), float("inf")))
    got = paged_attention(case.q, case.kv, case.batch, case.scale)
    assert got[0].isnan().all() and not got[1:].isnan().any()
