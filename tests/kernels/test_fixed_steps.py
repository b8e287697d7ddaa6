"""Attention in frames of fixed size against the reference, and the launch that feeds a frame."""

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from arbora.kernels import reference
from arbora.kernels.attention import cuda as attention_cuda
from arbora.kernels.attention.batch import FULL_REACH, AttentionBatch, DeviceTables, Group, Reach
from arbora.kernels.attention.cuda import Scores, Shape
from arbora.kernels.attention.cuda_tiles import Tiles
from arbora.kernels.attention.fixed_steps import LEVELS, Frame, Scratch, frame_tiles, needed_tiles
from arbora.kernels.common.feed_cuda import feed
from attention_cases import TREE, Sharing, Step, build_case
from interpreted_triton import DEVICE

TOKENS = 80
STEPS = {
    "single rows": (Step(16, (), (1, 33, 90), ()), 1),
    "short chunks": (Step(16, (), (5,), ((4, 30), (3, 0))), 1),
    "a group and a chunk": (Step(16, (Sharing(5, 2),), (33,), ((12, 40),)), 2),
    "nested groups and long chunks": (Step(16, (TREE,), (33,), ((35, 50), (30, 700))), 3),
    "chunks in a group": (Step(16, (Sharing(4, 2, (Sharing(2, 1),)), Sharing(2, 1)), (33,), ((3, 9),), 5), 2),
    "long chunks in a group": (Step(16, (Sharing(4, 2, (Sharing(2, 1),)),), (33,), ((3, 9),), 20), 3),
}
"""and the tiles of the large items, by size"""


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("reach", [FULL_REACH, Reach(17), Reach(chunk=17)])
def test_a_frame_gives_the_attention_of_the_step_in_it(name: str, reach: Reach) -> None:
    step, kind = STEPS[name]
    if reach != FULL_REACH:
        step = replace(step, groups=())
    case = build_case(step, (4, 1), 64, reach, torch.float16, True, 3)
    starts = np.concatenate(([0], np.cumsum(case.batch.page_counts())))[:-1]
    tables = torch.from_numpy(case.batch.joined_tables()).to(DEVICE)
    batch = replace(case.batch, kept_tables=DeviceTables(tables, starts), plans={})
    shape = Shape(4, 1, 64, reach)
    kinds = frame_tiles(shape, TOKENS, 2)
    needed = needed_tiles(batch, shape, 2)
    assert [tiles[-1].queries for tiles in kinds] == [16, 64, 128]
    assert needed in kinds and (reach != FULL_REACH or needed == kinds[kind - 1])
    q, kv = torch.zeros(TOKENS, 4, 64, dtype=torch.float16, device=DEVICE), case.kv.to(DEVICE)
    q[: len(case.q)] = case.q
    scratch = Scratch.allocate(shape, TOKENS, tables)
    for tiles in kinds[kinds.index(needed) :]:
        frame = Frame([shape], TOKENS, scratch, 2, tiles, {})
        assert frame.load([batch] * len(frame._plans), {})
        got = frame.batch.plans[shape].run(q, kv, Scores(case.scale, None, None))  # type: ignore[attr-defined]
        expected = reference.paged_attention(case.q.to(DEVICE), kv, case.batch, case.scale, reach)
        torch.testing.assert_close(got[: len(case.q)], expected, atol=3e-3, rtol=3e-3)


def grown(source: random.Random, first: int, last: int, shared: int, levels: int) -> Iterator[Group]:
    """Groups of rows [first, last), and within them, that share more than `shared` tokens."""
    while last - first > 1 and levels:
        rows = source.randint(2, last - first)
        more = shared + 16 * source.randint(1, 300)
        yield first, rows, more
        yield from grown(source, first, first + rows, more, levels - 1)
        first += rows


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("heads", [(32, 8), (7, 1), (8, 8)])
@pytest.mark.parametrize("longest", [1, 10])
def test_a_frame_holds_every_step_with_as_many_levels_of_groups_as_it_has(
    longest: int, heads: tuple[int, int], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_cuda, "processors", lambda device: 132)
    source, shape, device = random.Random(seed), Shape(*heads, 128, FULL_REACH), torch.device("cpu")
    queries: list[int] = []
    while sum(queries) < TOKENS:
        queries.append(min(source.randint(1, longest), TOKENS - sum(queries)))
    count = len(queries)
    groups = list(grown(source, 0, count, 0, LEVELS - 1))
    shared = np.zeros(count, np.int64)
    for first, rows, end in groups:
        shared[first : first + rows] = end
    own = [max(tokens, source.choice([1, 30, 500, 40_000])) for tokens in queries]
    lengths = (shared + own).tolist()
    tables = torch.zeros(1, dtype=torch.int32)
    kept = DeviceTables(tables, np.zeros(count, np.int64))
    pages = [np.zeros(0, np.int32)] * count
    batch = AttentionBatch.build(queries, lengths, pages, 16, device, groups, kept)
    scratch = replace(Scratch.allocate(shape._replace(head_dim=1), TOKENS, tables), tables=tables)
    frame = Frame([shape], TOKENS, scratch, 2, needed_tiles(batch, shape, 2), {})
    assert frame.load([batch] * len(frame._plans), {})


def test_small_frames_need_no_large_tiles() -> None:
    shape = Shape(32, 8, 128, FULL_REACH)
    assert [tiles[-1].queries for tiles in frame_tiles(shape, 4, 2)] == [16]
    assert [tiles[-1].queries for tiles in frame_tiles(shape, 16, 2)] == [16, 64]
    assert [tiles[-1].queries for tiles in frame_tiles(shape, 17, 2)] == [16, 64, 128]
    assert frame_tiles(shape, 512, 4) == [(Tiles(16, 16, 4),)]


def test_tokens_come_from_slots_or_from_the_step_and_new_pages_enter_the_tables() -> None:
    def tensor(values: list[int], dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype, device=DEVICE)

    ids, slots = tensor([7, 0, 9] * 50), tensor([-1, 2, -1] * 50)
    tables = torch.zeros(40, dtype=torch.int32, device=DEVICE)
    places = tensor([3, -1, 39, -1], torch.int64)
    tokens = feed(ids, slots, tensor([70, 71, 72]), places, tensor([5, 6, 8, 9]), tables)
    assert tokens.tolist() == [7, 72, 9] * 50
    assert {at: int(tables[at]) for at in range(40) if tables[at]} == {3: 5, 39: 8}
