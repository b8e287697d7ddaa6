"""Attention on the CPU against its plain-PyTorch reference."""

import os
import platform
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import torch
from arbora.kernels import reference
from arbora.kernels.attention import Reach, paged_attention
from arbora.kernels.attention import cpu as attention_cpu
from arbora.kernels.attention.plan import END, TOKEN, TOKENS
from arbora.kernels.attention.tile_inputs import transpose_words
from arbora.kernels.common import amx, bfloat16_dots
from arbora.kernels.common.numba_tools import pointer
from arbora.kernels.pages.cells import CellFormat
from attention_cases import TREE, AttentionCase, Sharing, Step, build_case, steps
from hypothesis import given, settings
from hypothesis import strategies as st
from lesser_processor import output_without
from sapphire_rapids import output_for_sapphire_rapids
from segmented import segmented

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
HEADS = [(4, 4), (4, 2), (6, 2), (14, 2), (8, 1), (40, 1)]
ONE_HEAP = Path(__file__).parents[1] / "support" / "kernels_in_one_heap.py"
REACHES = [Reach(), Reach(), Reach(1), Reach(7), Reach(64), Reach(chunk=1), Reach(chunk=9), Reach(chunk=64)]
WAYS = {
    "key by key": (False, False),
    "tiles without AMX": (True, False),
    "as the processor is": (True, True),
}
"""for each: whether attention may be computed in tiles, and whether AMX may multiply them"""


def poison_unused_slots(case: AttentionCase) -> None:
    unused = torch.ones(case.kv.shape[2:4], dtype=torch.bool)
    for table, length in zip(case.batch.page_tables, case.batch.kv_lengths.tolist(), strict=True):
        position = torch.arange(length)
        page = torch.from_numpy(table).long()[position // case.batch.page_size]
        unused[page, position % case.batch.page_size] = False
    broken = torch.full(case.q.shape[2:], float("nan"))
    case.kv[:, :, unused] = CellFormat(case.kv.dtype).encode(broken)


def assert_matches_reference(case: AttentionCase, segment: int | None = None) -> None:
    """segment: pages of a segment of the cache, if several stand together"""
    poison_unused_slots(case)
    if segment is not None:
        case = replace(case, kv=segmented(case.kv, segment))
    got, expected = case.attend(paged_attention), case.attend(reference.paged_attention)
    tolerance = TOLERANCE[case.q.dtype]
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("way", WAYS)
@settings(max_examples=60, deadline=None)
@given(
    step=steps(),
    heads=st.sampled_from(HEADS),
    head_dim=st.sampled_from([16, 32, 48, 64, 80, 90, 96, 128]),
    reach=st.sampled_from(REACHES),
    has_caps=st.booleans(),
    dtype=st.sampled_from(list(TOLERANCE)),
    stored=st.sampled_from([None, torch.int8]),
    scattered=st.booleans(),
    segment=st.sampled_from([None, 1, 3, 40]),
    split=st.sampled_from([40, 512]),
    seed=st.integers(0, 1000),
)
def test_every_step_matches_the_reference(
    way: str,
    step: Step,
    heads: tuple[int, int],
    head_dim: int,
    reach: Reach,
    has_caps: bool,
    dtype: torch.dtype,
    stored: torch.dtype | None,
    scattered: bool,
    segment: int | None,
    split: int,
    seed: int,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        tiles, by_amx = WAYS[way]
        if not tiles:
            patch.setattr(bfloat16_dots, "available", lambda: False)
        if not by_amx:
            patch.setattr(amx, "available", lambda: False)
        patch.setattr(attention_cpu, "_split", lambda *_: split)
        case = build_case(step, heads, head_dim, reach, dtype, scattered, seed, stored, has_caps)
        assert_matches_reference(case, segment)


@settings(max_examples=60, deadline=None)
@given(
    step=steps(),
    reach=st.sampled_from(REACHES),
    dtype=st.sampled_from([torch.bfloat16, torch.float32]),
    stored=st.sampled_from([None, torch.int8]),
    batch_invariant=st.booleans(),
    split=st.sampled_from([40, 512]),
    data=st.data(),
)
def test_leaving_out_other_tokens_does_not_change_the_bits_of_output_tokens(
    step: Step,
    reach: Reach,
    dtype: torch.dtype,
    stored: torch.dtype | None,
    batch_invariant: bool,
    split: int,
    data: st.DataObject,
) -> None:
    case = build_case(step, (4, 2), 64, reach, dtype, False, 9, stored)
    outputs = data.draw(st.lists(st.integers(0, case.batch.tokens - 1)), "outputs")
    batch = replace(case.batch, outputs=np.array(outputs, np.int64), plans={})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_cpu, "_split", lambda *_: split)
        every, some = (
            paged_attention(case.q, case.kv, batch, case.scale, reach, batch_invariant, outputs_only)
            for outputs_only in (False, True)
        )
    assert torch.equal(some[outputs], every[outputs])


def test_a_chunk_with_one_output_token_computes_the_items_of_that_token_alone() -> None:
    case = build_case(Step(16, (), (40,), ((100, 300),)), (4, 2), 64, None, torch.bfloat16, False, 0)
    batch = replace(case.batch, outputs=np.array([0, 100]), plans={})
    whole, part = (
        attention_cpu.plan_attention(case.q, case.kv, batch, Reach(), False, outputs_only)._items.items
        for outputs_only in (False, True)
    )
    assert len(whole) > 2 and part[:, TOKEN].tolist() == [0, whole[-1, TOKEN]]


LONG = Step(16, groups=(Sharing(4, 12), TREE), decode_lengths=(1500, 700), chunks=((64, 300), (100, 0)))


@pytest.mark.parametrize("threads", [1, 2, 40])
@pytest.mark.parametrize("stored", [None, torch.int8])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_any_number_of_threads_gives_the_same_result(
    dtype: torch.dtype, stored: torch.dtype | None, threads: int
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert_matches_reference(build_case(LONG, (16, 4), 64, None, dtype, False, 5, stored), 32)
    finally:
        torch.set_num_threads(before)


def test_layers_of_one_shape_share_a_plan_and_other_shapes_get_their_own() -> None:
    case = build_case(LONG, (4, 2), 32, None, torch.float32, False, 6)
    wider = build_case(LONG, (8, 4), 32, None, torch.float32, False, 6)
    for q, kv in [(case.q, case.kv), (case.q, case.kv.flip(0).contiguous()), (wider.q, wider.kv)]:
        got = paged_attention(q, kv, case.batch, case.scale)
        torch.testing.assert_close(
            got, reference.paged_attention(q, kv, case.batch, case.scale), atol=1e-5, rtol=1e-5
        )
    assert len(case.batch.plans) == 2


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_queries_may_be_a_view_of_a_fused_projection(dtype: torch.dtype) -> None:
    case = build_case(LONG, (4, 2), 32, None, dtype, False, 7)
    fused = torch.randn(case.batch.tokens, 8, 32).to(dtype)
    fused[:, :4] = case.q
    assert_matches_reference(replace(case, q=fused[:, :4]))


@pytest.mark.parametrize("kernel", ["attention", "rotary"])
def test_threads_that_allocate_from_one_heap_dont_overwrite_each_others_scratch(kernel: str) -> None:
    command = [sys.executable, str(ONE_HEAP), kernel]
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert float(done.stdout) < TOLERANCE[torch.bfloat16]


@pytest.mark.parametrize("tiles", [True, False])
@pytest.mark.parametrize("head_dim", [48, 64])
@pytest.mark.parametrize("heads", [(8, 1), (3, 1), (2, 2)])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("overflow", [float("nan"), float("inf")])
@pytest.mark.parametrize("part", [0, 1])
def test_overflowing_keys_and_values_overflow_in_the_output(
    part: int,
    overflow: float,
    dtype: torch.dtype,
    heads: tuple[int, int],
    head_dim: int,
    tiles: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not tiles:
        monkeypatch.setattr(bfloat16_dots, "available", lambda: False)
    case = build_case(Step(1, (), (100, 40), ((5, 60),)), heads, head_dim, None, dtype, False, 8)
    case.kv[part, :, case.batch.page_tables[0][70]] = overflow
    got = paged_attention(case.q, case.kv, case.batch, case.scale)
    expected = reference.paged_attention(case.q, case.kv, case.batch, case.scale)
    assert torch.equal(got.isnan(), expected.isnan()) and torch.equal(got.isinf(), expected.isinf())


def test_rows_with_few_query_heads_are_read_as_a_group() -> None:
    case = build_case(Step(16, (Sharing(2, 12),), (), ()), (4, 2), 64, None, torch.bfloat16, False, 0)
    items = attention_cpu.plan_attention(case.q, case.kv, case.batch, Reach(), False, False)._items.items
    assert [tokens for tokens, end in items[:, [TOKENS, END]].tolist() if end == 12 * 16] == [2]


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("scattered", [False, True])
def test_groups_of_few_rows_match_the_reference(scattered: bool, rows: int) -> None:
    """Two to ten query heads of a KV head."""
    step = Step(16, (Sharing(rows, 12),), (), ((rows, 100),))
    assert_matches_reference(build_case(step, (4, 2), 128, None, torch.bfloat16, scattered, 1))


@pytest.mark.parametrize("stored", [None, torch.int8])
@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("queries", [2, 3, 4, 5, 8, 9])
def test_few_queries_match_the_reference_for_any_number_of_keys(
    queries: int, scattered: bool, stored: torch.dtype | None
) -> None:
    step = Step(16, (), (1, 2, 127, 128, 129, 130, 255, 256, 257), ((1, 383), (1, 384)))
    case = build_case(step, (queries, 1), 64, None, torch.bfloat16, scattered, 2, stored)
    assert_matches_reference(case)


OTHER_PROCESSOR = """
import torch
from arbora.kernels import reference
from arbora.kernels.attention import paged_attention
from attention_cases import Sharing, Step, build_case
for head_dim in (16, 48, 64, 90):
    step = Step(16, (Sharing(3, 12),), (40,), ())
    case = build_case(step, (4, 2), head_dim, None, torch.bfloat16, True, head_dim, has_caps=head_dim < 60)
    got, expected = case.attend(paged_attention), case.attend(reference.paged_attention)
    torch.testing.assert_close(got, expected, atol=2e-2, rtol=2e-2)
"""


@pytest.mark.parametrize("lacking", ["avx512bf16", "avx512"])
def test_code_for_other_processors_matches_the_reference(lacking: str, tmp_path: Path) -> None:
    output_without(lacking, ["-c", OTHER_PROCESSOR], tmp_path)


def test_words_are_transposed() -> None:
    @numba.njit  # type: ignore[untyped-decorator]
    def transpose(source: np.ndarray, target: np.ndarray) -> None:
        transpose_words(_words(source), 20, _words(target), 17)

    @numba.njit  # type: ignore[untyped-decorator]
    def _words(array: np.ndarray) -> Any:
        return pointer(array.ctypes.data, np.uint32(0))

    source = np.random.default_rng(0).integers(0, 1 << 32, (16, 20), dtype=np.uint32)
    target = np.zeros((16, 17), np.uint32)
    transpose(source, target)
    assert (target[:, :16] == source[:, :16].T).all() and not target[:, 16].any()


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="AMX is a unit of x86")
def test_tiles_for_processors_with_amx_use_it(tmp_path: Path) -> None:
    """A machine without AMX cannot run the code, but shows whether it compiles and its instructions."""
    program = """
from arbora.kernels.common import amx
from numba import njit, types
def product(shapes, count, words, sums):
    amx.load_shapes(shapes)
    amx.multiply_square(count, words, count, count, words, count, sums, count, True, words, 0)
    amx.release_tiles()
function = njit(product)
pointers = [types.CPointer(each) for each in (types.uint8, types.uint32, types.float32)]
function.compile((pointers[0], types.int64, pointers[1], pointers[2]))
print(function.inspect_asm(function.signatures[0]))
"""
    assembly = output_for_sapphire_rapids(program, tmp_path)
    for name in ("ldtilecfg", "tileloadd", "tdpbf16ps", "tilestored", "tilerelease"):
        assert re.search(rf"\b{name}\b", assembly), name


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="AMX is a unit of x86")
def test_items_are_compiled_with_amx(tmp_path: Path) -> None:
    """Compiles the code for int8 cells, which multiplies them as bfloat16 cells are multiplied."""
    program = """
from arbora.kernels.attention import tiles
from numba import types
function = tiles._run_items
function.compile((types.CPointer(types.int64), types.int8))
print(function.inspect_asm(function.signatures[0]))
"""
    assembly = output_for_sapphire_rapids(program, tmp_path)
    for name in ("tdpbf16ps", "vdpbf16ps", "vreduceps", "vscalefps"):
        assert re.search(rf"\b{name}\b", assembly), name


def test_tiles_are_not_used_when_numba_compiles_for_an_older_processor() -> None:
    program = "from arbora.kernels.common import bfloat16_dots\nprint(bfloat16_dots.available())"
    environment = {**os.environ, "NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "False\n"
