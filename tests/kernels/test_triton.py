"""The CUDA kernels against plain PyTorch: no GPU needed, sizes kept small for Triton's interpreter."""

import math

import numpy as np
import pytest
import torch
from arbora.kernels import reference
from arbora.kernels.attention import FULL_REACH, Reach
from arbora.kernels.attention import cuda as attention_triton
from arbora.kernels.attention.batch import AttentionBatch
from arbora.kernels.attention.cuda_tiles import Tiles
from arbora.kernels.attention.plan import BEGIN, END, PARTIAL, TOKEN, TOKENS
from arbora.kernels.elementwise import cuda as elementwise_triton
from arbora.kernels.pages import cuda as pages_triton
from arbora.kernels.rotary import HeadNorms
from arbora.kernels.rotary import cuda as rotary_triton
from attention_cases import TREE, AttentionCase, Sharing, Step, build_case
from interpreted_triton import DEVICE

TOLERANCE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}

MIXED = Step(
    16, groups=(Sharing(3, 2), Sharing(2, 1)), decode_lengths=(1, 33, 90), chunks=((20, 0), (1, 40), (35, 50))
)
STEPS = {
    "a step of every kind of row": MIXED,
    "pages of one token": Step(1, groups=(Sharing(2, 3),), decode_lengths=(5,), chunks=((7, 9),)),
    "pages of 64 tokens": Step(64, groups=(Sharing(2, 1),), decode_lengths=(130,), chunks=((70, 10),)),
    "groups within groups": Step(16, groups=(TREE,), decode_lengths=(33,), chunks=((20, 0),)),
    "short chunks in groups": Step(16, (TREE, Sharing(2, 4)), (33,), ((20, 0),), grouped_tokens=3),
    "long chunks in groups": Step(16, (TREE, Sharing(2, 4)), (33,), ((20, 0),), grouped_tokens=20),
    "a row long enough to be split": Step(16, groups=(Sharing(2, 20),), decode_lengths=(700,), chunks=()),
}

H200_PROCESSORS, KV_HEADS, REPEAT = 132, 8, 4
SHAPE = attention_triton.Shape(KV_HEADS * REPEAT, KV_HEADS, 128, FULL_REACH)


def assert_attention_matches(case: AttentionCase) -> None:
    case = case.to(DEVICE)
    got, expected = case.attend(attention_triton.paged_attention), case.attend(reference.paged_attention)
    tolerance = TOLERANCE[case.q.dtype]
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("name", STEPS)
def test_attention_over_scattered_pages_matches_the_reference(name: str) -> None:
    assert_attention_matches(build_case(STEPS[name], (4, 2), 32, None, torch.float32, True, 1))


def test_attention_in_half_precision_matches_the_reference() -> None:
    # The interpreter cannot multiply bfloat16 matrices.
    assert_attention_matches(build_case(MIXED, (4, 2), 64, None, torch.float16, False, 2))


@pytest.mark.parametrize("has_caps", [False, True])
@pytest.mark.parametrize("reach", [Reach(1), Reach(17), Reach(64), Reach(chunk=9), Reach(chunk=64)])
def test_a_window_and_a_chunk_hide_older_tokens(reach: Reach, has_caps: bool) -> None:
    assert_attention_matches(build_case(MIXED, (4, 2), 32, reach, torch.float32, True, 3, has_caps=has_caps))


@pytest.mark.parametrize(("heads", "head_dim"), [((3, 1), 80), ((5, 5), 96), ((24, 1), 32)])
def test_head_counts_and_sizes_may_be_any_number(heads: tuple[int, int], head_dim: int) -> None:
    assert_attention_matches(build_case(MIXED, heads, head_dim, None, torch.float32, True, 4))


@pytest.mark.parametrize("grouped_tokens", [1, 9])
@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("processors", [2, 64])
def test_keys_may_be_split(
    processors: int, window: int | None, grouped_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_triton, "MIN_SPLIT", 64)
    monkeypatch.setattr(attention_triton, "processors", lambda device: processors)
    chunks = ((40, 300), (1, 700), (9, 0))
    step = Step(16, (Sharing(2, 3), Sharing(2, 9)), (500, 3), chunks, grouped_tokens)
    assert_attention_matches(build_case(step, (4, 2), 32, window, torch.float32, True, 5))


@pytest.mark.parametrize("grouped_tokens", [1, 20])
def test_rows_within_a_window_read_the_keys_that_they_share_once(grouped_tokens: int) -> None:
    step = Step(16, (Sharing(3, 2), TREE), (33, 200), ((20, 100),), grouped_tokens)
    case = build_case(step, (4, 2), 32, 90, torch.float32, True, 5)
    visible = attention_triton.visible_groups(case.batch, Reach(90))
    assert (0, 3, 32) in visible and 0 < len(visible) < len(case.batch.groups)
    assert_attention_matches(case)


def test_the_partial_results_of_rows_with_few_and_many_keys_have_no_gaps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention_triton, "processors", lambda device: 64)
    monkeypatch.setattr(attention_triton, "MIN_SPLIT", 64)
    lengths, device = [40, 50, 3000, 1500], torch.device("cpu")
    tables = [np.arange(-(-length // 16), dtype=np.int32) for length in lengths]
    batch = AttentionBatch.build([1, 1, 1, 20], lengths, tables, 16, device, [(0, 3, 32)])
    tiles = attention_triton.StepTiles.choose(batch, SHAPE, 2)
    plan = attention_triton.plan_step(batch, np.zeros(4, np.int64), SHAPE, tiles, device)
    places = [
        plan.places[token] + item[PARTIAL]
        for item in np.concatenate([plan.decode, plan.chunks])
        for token in range(item[TOKEN], item[TOKEN] + item[TOKENS])
        if item[PARTIAL] >= 0
    ]
    assert sorted(places) == list(range(plan.partials))
    assert plan.merges[:, 2].sum() == plan.partials
    assert plan.merges[0, 2] == 2 < plan.merges[2, 2]


def test_a_partial_result_costs_as_much_as_reading_some_tokens() -> None:
    assert attention_triton.merged_tokens(SHAPE, 256) == pytest.approx(2 * 4 * 129 / 128 + 8)
    assert attention_triton.merged_tokens(SHAPE, 132) == pytest.approx(2 * 8 * 128 / 132 * 129 / 128 + 8)


def test_more_partial_results_than_are_merged_at_once_match_the_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention_triton, "MERGED_AT_ONCE", 4)
    monkeypatch.setattr(attention_triton, "MIN_SPLIT", 64)
    monkeypatch.setattr(attention_triton, "processors", lambda device: 64)
    case = build_case(Step(16, (), (600, 3), ((2, 300),)), (4, 2), 32, None, torch.float32, True, 5)
    shape, starts = attention_triton.Shape(4, 2, 32, FULL_REACH), np.zeros(3, np.int64)
    tiles = attention_triton.StepTiles.choose(case.batch, shape, 4)
    plan = attention_triton.plan_step(case.batch, starts, shape, tiles, torch.device("cpu"))
    assert plan.merges[:, 2].max() > 4
    assert_attention_matches(case)


def turns_of(rows: int, tokens: int, keys: int) -> tuple[float, int]:
    """A step's programs as a multiple of those that an H200 runs at a time, and the keys of the longest."""
    step = Step(16, (), (keys,) * rows, ()) if tokens == 1 else Step(16, (), (), ((tokens, keys),))
    batch = build_case(step, (1, 1), 1, None, torch.float32, True, 6).batch
    tiles = Tiles.choose(tokens * REPEAT, REPEAT, 128, 2)
    device = torch.device("cpu")
    plan = attention_triton.plan_rows(batch, np.ones(rows, np.bool_), (), SHAPE, tiles, device)
    programs = len(plan.items) * KV_HEADS
    longest = int((plan.items[:, END] - plan.items[:, BEGIN]).max())
    return programs / attention_triton.programs_at_a_time(tiles, 128, device), longest


@pytest.mark.parametrize("keys", [1024, 8192, 32768])
@pytest.mark.parametrize(("rows", "tokens"), [(1, 1), (8, 1), (64, 1), (256, 1), (1, 4), (1, 100), (1, 512)])
def test_items_are_split_so_that_processors_have_equal_work(
    rows: int, tokens: int, keys: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_triton, "processors", lambda device: H200_PROCESSORS)
    turns, longest = turns_of(rows, tokens, keys)
    # Either the last turn is nearly full, or there are many, or items can hardly be shorter.
    assert turns / math.ceil(turns) > 0.8 or longest <= 2 * attention_triton.MIN_SPLIT


def test_items_of_small_groups_take_the_tiles_of_single_rows() -> None:
    step = Step(16, (Sharing(9, 20), Sharing(4, 30), Sharing(2, 10)), (33,), ())
    batch = build_case(step, (32, 8), 32, None, torch.float16, True, 7).batch
    shape = attention_triton.Shape(32, 8, 32, FULL_REACH)
    small = attention_triton.decode_tiles(shape, (), 2)
    large = attention_triton.decode_tiles(shape, batch.groups, 2)
    every = np.ones(16, np.bool_)
    plan = attention_triton.plan_rows(batch, every, batch.groups, shape, large, torch.device("cpu"))
    single, grouped = attention_triton.by_size(plan.items, small, shape)
    assert set(grouped[:, TOKENS]) == {9}
    assert set(single[:, TOKENS]) == {1, 2, 4}


def test_decode_rows_in_a_group_with_a_chunk_take_the_tiles_of_single_rows_for_their_own_keys() -> None:
    step = Step(16, groups=(Sharing(12, 20),), decode_lengths=(33,), chunks=(), grouped_tokens=2)
    batch = build_case(step, (32, 8), 32, None, torch.float16, True, 7).batch
    shape = attention_triton.Shape(32, 8, 32, FULL_REACH)
    plan = attention_triton.BatchPlan(batch, shape, 2, DEVICE)
    single, grouped, chunks = (launch.items[:, TOKENS].tolist() for launch in plan._launches)
    assert batch.is_chunk().any() and sorted(single) == sorted(batch.query_lengths.tolist())
    assert grouped == [] and set(chunks) == {batch.tokens - 1}


def test_shared_keys_of_a_group_count_once_for_each_read() -> None:
    step = Step(16, groups=(Sharing(9, 20), Sharing(2, 1)), decode_lengths=(33, 90), chunks=((20, 0),))
    batch = build_case(step, (4, 2), 32, None, torch.float32, True, 1).batch
    decode, every = ~batch.is_chunk(), int(batch.kv_lengths[:13].sum())
    own = every - 9 * 320 - 2 * 16
    assert (
        attention_triton.keys_to_read(batch, decode, batch.groups, 4, FULL_REACH).sum() == own + 3 * 320 + 16
    )
    assert attention_triton.keys_to_read(batch, decode, (), 4, FULL_REACH).sum() == every


def test_a_group_within_another_one_reads_only_the_keys_after_the_outer_ones() -> None:
    batch = build_case(Step(16, (TREE,), (33,), ((20, 0),)), (4, 2), 32, None, torch.float32, True, 1).batch
    saved_pages = 5 * 2 + 1 * 18 + 2 * 1 + 1 * 1  # all rows of a group but one, times its pages
    expected = int(batch.kv_lengths[:7].sum()) - 16 * saved_pages
    assert (
        attention_triton.keys_to_read(batch, ~batch.is_chunk(), batch.groups, 8, FULL_REACH).sum() == expected
    )


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_norms_match_the_reference(dtype: torch.dtype) -> None:
    x = torch.randn(15, 99, device=DEVICE).to(dtype)
    residual = torch.randn(15, 99, device=DEVICE).to(dtype)
    weight = torch.rand(99, device=DEVICE).to(dtype)
    assert_close(elementwise_triton.rms_norm(x, weight, 1e-6), reference.rms_norm(x, weight, 1e-6))
    expected = reference.add_rms_norm(x, expected_residual := residual.clone(), weight, 1e-6)
    assert_close(elementwise_triton.add_rms_norm(x, residual, weight, 1e-6), expected)
    assert_close(residual, expected_residual)
    wide = torch.rand(2, 99, device=DEVICE)
    assert_close(elementwise_triton.rms_norm(x, wide[0], 1e-6), reference.rms_norm(x, wide[0], 1e-6))
    expected = reference.add_rms_norm(x, expected_residual, wide[0], 1e-6, 0.5, wide[1])
    assert_close(elementwise_triton.add_rms_norm(x, residual, wide[0], 1e-6, 0.5, wide[1]), expected)
    assert_close(residual, expected_residual)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_activations_and_caps_match_the_reference(dtype: torch.dtype) -> None:
    gate_up = (torch.randn(3, 2 * 1100, device=DEVICE) * 4).to(dtype)
    activate, cap = elementwise_triton.activate_and_mul, elementwise_triton.scale_and_cap
    assert_close(activate(gate_up, gelu=False), reference.silu_and_mul(gate_up))
    assert_close(activate(gate_up, gelu=True), reference.gelu_and_mul(gate_up))
    for softcap, result in ((None, dtype), (3.0, torch.float32)):
        expected = reference.scale_and_cap(gate_up, 0.7, softcap, result)
        assert_close(cap(gate_up, 0.7, softcap, result), expected)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("half", [24, 16], ids=["whole head", "part of the head"])
@pytest.mark.parametrize("normal", [False, True], ids=["as they are", "normalised"])
def test_rotary_write_kv_matches_the_reference(normal: bool, half: int, dtype: torch.dtype) -> None:
    qkv = torch.randn(6, 8, 48, device=DEVICE).to(dtype)
    expected_qkv = qkv.clone()
    angles = torch.rand(30, half, device=DEVICE) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
    positions = torch.randint(0, 30, (6,), device=DEVICE)
    slots = torch.randperm(4 * 16, device=DEVICE)[:6]
    slots[2] = -1
    kv = torch.randn(2, 2, 4, 16, 48, device=DEVICE).to(dtype)
    expected_kv = kv.clone()
    weights = torch.rand(2, 48, device=DEVICE)
    norms = HeadNorms(weights[0], weights[1], 1e-6) if normal else None
    at = (cos_sin, positions, slots)
    q, k, v = torch.split(qkv, [4, 2, 2], dim=1)
    rotary_triton.rotary_write_kv(q, k, v, *at, kv, norms)
    q, k, v = torch.split(expected_qkv, [4, 2, 2], dim=1)
    reference.rotary_write_kv(q, k, v, *at, expected_kv, norms)
    assert_close(qkv[:, :4], expected_qkv[:, :4])
    assert_close(kv, expected_kv)


def test_copy_pages_copies_whole_pages_in_every_layer() -> None:
    kvs = [torch.randn(2, 2, 7, 16, 80, device=DEVICE) for _ in range(2)]
    expected = [kv.clone() for kv in kvs]
    pages_triton.copy_pages(kvs, kvs[0].shape[3], [0, 6], [5, 2])
    reference.copy_pages(expected, kvs[0].shape[3], [0, 6], [5, 2])
    assert all(torch.equal(got, want) for got, want in zip(kvs, expected, strict=True))


@pytest.mark.parametrize("layers_at_once", [[range(2)], [range(1), range(1, 2)]])
@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_pages_move_to_host_memory_and_back(
    page_size: int, layers_at_once: list[range], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages_triton, "PROGRAMS", 3)
    kvs = [torch.randn(2, 2, 7, page_size, 80, device=DEVICE) for _ in range(2)]
    shape = (3, 3, 4, page_size * 80)  # a place may have room for more layers
    memory = torch.randn(shape, pin_memory=DEVICE.type == "cuda")
    expected, expected_memory = [kv.clone() for kv in kvs], memory.clone()
    pages_triton.CudaMoves(kvs, [6, 1], memory, [0, 2]).save()
    moves = pages_triton.CudaMoves(kvs, [3, 5], memory, [2, 1])
    for layers in layers_at_once:
        moves.load(layers)
    reference.save_pages(expected, [6, 1], expected_memory, [0, 2])
    reference.load_pages(expected, [3, 5], expected_memory, [2, 1])
    assert all(torch.equal(got, want) for got, want in zip(kvs, expected, strict=True))
    assert torch.equal(memory, expected_memory)


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCE[got.dtype]
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)
