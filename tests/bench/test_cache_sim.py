"""The replay of traces, and the traces that are generated for it."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from statistics import mean

import pytest
from arbora.radix_cache import GittinsPolicy
from least_recently_used import LeastRecentlyUsed

sys.path.append(str(Path(__file__).parents[2] / "bench"))
sys.path.append(str(Path(__file__).parents[2] / "bench" / "lib"))
from cache_sim import PAGE, belady, compare, replay
from service_traces import SERVICES
from traces import KINDS, Request, Trace, generate, read_trace

BLOCKS = 100


def check_parents(trace: Trace) -> None:
    before: dict[int, int] = {}
    for request in trace:
        for parent, block in pairwise([-1, *request.prompt]):
            assert before.setdefault(block, parent) == parent


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_always_follows_the_same_prefix(kind: str) -> None:
    trace = generate(kind, BLOCKS)
    check_parents(trace)
    assert generate(kind, BLOCKS) == trace
    assert generate(kind, BLOCKS, seed=1) != trace or kind in ("loop", "growing_loops")


@pytest.mark.parametrize("kind", KINDS)
def test_no_policy_hits_more_than_the_one_that_knows_the_future(kind: str) -> None:
    row = compare(generate(kind, BLOCKS), BLOCKS)
    assert 0 <= min(row["lru"], row["ours"]) <= max(row["lru"], row["ours"]) <= row["belady"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_learned_policy_keeps_up_with_lru_in_a_cache_of_a_dozen_prompts(kind: str) -> None:
    traces = [generate(kind, BLOCKS, seed) for seed in range(4)]
    lru = mean(replay(trace, BLOCKS, LeastRecentlyUsed()) for trace in traces)
    assert mean(replay(trace, BLOCKS, GittinsPolicy(BLOCKS, PAGE)) for trace in traces) > lru - 0.01


def test_belady_keeps_the_prefix_that_is_requested_soonest() -> None:
    trace = [Request([block], 0) for block in (1, 2, 3, 1, 2, 4, 1)]
    assert belady(trace, 2) == pytest.approx(2 / 7)


def test_a_trace_is_read_line_by_line(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text('{"hash_ids": [1, 2], "output_length": 7}\n{"timestamp": 0, "hash_ids": [1, 3]}\n')
    assert read_trace(file) == [Request([1, 2], 7), Request([1, 3], 0)]


def test_a_last_block_is_partial_if_the_prompt_does_not_fill_it(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    lengths = [(700, [1, 2]), (1024, [1, 3]), (1536, [1, 3, 4]), (5, [5])]
    file.write_text("\n".join(f'{{"input_length": {n}, "hash_ids": {ids}}}' for n, ids in lengths))
    assert [request.partial for request in read_trace(file)] == [True, False, False, True]


def test_a_partial_block_is_hit_by_the_same_prompt_only() -> None:
    first, longer = Request([1, 2], 0, partial=True), Request([1, 3, 4], 0, partial=True)
    assert replay([first, first, longer], 8, LeastRecentlyUsed()) == pytest.approx(3 / 7)


@pytest.mark.parametrize("name", SERVICES)
def test_a_block_of_a_service_always_follows_the_same_prefix(name: str) -> None:
    trace = SERVICES[name](0, 30)
    check_parents(trace)
    assert SERVICES[name](0, 30) == trace
    assert SERVICES[name](1, 30) != trace


@pytest.mark.parametrize(
    ("name", "requests", "blocks", "seen_before"),
    [
        ("chats", 12_031, 12_035 / 512, 0.40),
        ("regulars", 12_031, 12_035 / 512, 0.40),
        ("tools", 23_608, 8_596 / 512, 0.59),
    ],
)
def test_services_have_the_published_statistics(
    name: str, requests: int, blocks: float, seen_before: float
) -> None:
    trace = SERVICES[name]()
    used = [block for request in trace for block in request.prompt]
    assert len(trace) == pytest.approx(requests, rel=0.1)
    assert len(used) / len(trace) == pytest.approx(blocks, rel=0.1)
    assert 1 - len(set(used)) / len(used) == pytest.approx(seen_before, abs=0.05)


def test_regulars_are_hit_as_often_as_the_trace_that_they_resemble() -> None:
    trace = SERVICES["regulars"]()
    assert replay(trace, 4_000, LeastRecentlyUsed()) == pytest.approx(0.087, abs=0.02)
    assert belady(trace, 4_000) == pytest.approx(0.321, abs=0.02)
