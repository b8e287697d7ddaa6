"""The replay of traces, and the traces that are generated for it."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent / "bench"))
from cache_sim import belady, compare
from traces import KINDS, Request, generate, read_trace

BLOCKS = 100


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_always_follows_the_same_prefix(kind: str) -> None:
    before: dict[int, int] = {}
    trace = generate(kind, BLOCKS)
    for prompt, _ in trace:
        for parent, block in pairwise([-1, *prompt]):
            assert before.setdefault(block, parent) == parent
    assert generate(kind, BLOCKS) == trace
    assert generate(kind, BLOCKS, seed=1) != trace or kind in ("loop", "growing_loops")


@pytest.mark.parametrize("kind", KINDS)
def test_no_order_hits_more_than_the_one_that_knows_the_future(kind: str) -> None:
    row = compare(generate(kind, BLOCKS), BLOCKS)
    assert 0 <= min(row["lru"], row["ours"]) <= max(row["lru"], row["ours"]) <= row["belady"]


def test_belady_keeps_what_is_asked_for_first() -> None:
    trace = [Request([block], 0) for block in (1, 2, 3, 1, 2, 4, 1)]
    assert belady(trace, 2) == pytest.approx(2 / 7)


def test_a_trace_is_read_line_by_line(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text('{"hash_ids": [1, 2], "output_length": 7}\n{"timestamp": 0, "hash_ids": [1, 3]}\n')
    assert read_trace(file) == [Request([1, 2], 7), Request([1, 3], 0)]
