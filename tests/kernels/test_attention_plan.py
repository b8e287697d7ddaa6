"""The work items of attention cover every key that a token sees exactly once."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
import torch
from arbora.kernels.attention.batch import FULL_REACH, AttentionBatch, first_keys
from arbora.kernels.attention.plan import (
    BEGIN,
    END,
    PARTIAL,
    POSITION,
    ROW,
    STRIDE,
    TOKEN,
    TOKENS,
    UNLIMITED,
    Cut,
    ItemPlan,
    plan_items,
)
from attention_cases import Step, build_case, steps
from hypothesis import given, settings
from hypothesis import strategies as st

CUTS = [Cut(40), Cut(512), Cut(16, aligned=True)]


def plan_all(
    batch: AttentionBatch, groups: tuple[tuple[int, int, int], ...], tokens: int, cut: Cut
) -> ItemPlan:
    every_row = np.ones(len(batch.kv_lengths), np.bool_)
    return plan_items(batch, groups, every_row, tokens, cut, FULL_REACH)


def shortened(groups: tuple[tuple[int, int, int], ...], unit: int) -> tuple[tuple[int, int, int], ...]:
    """The groups with multiples of `unit` keys, without those that lose all of theirs."""
    cut = [(first, rows, keys // unit * unit) for first, rows, keys in groups]
    return tuple(g for g, begin in zip(cut, first_keys(groups), strict=True) if g[2] > begin // unit * unit)


@settings(deadline=None)
@given(step=steps(), tokens=st.integers(1, 16), cut=st.sampled_from(CUTS), seed=st.integers(0, 99))
def test_items_and_merges_cover_each_key_of_each_token_once_and_in_order(
    step: Step, tokens: int, cut: Cut, seed: int
) -> None:
    batch = build_case(step, (1, 1), 1, None, torch.float32, True, seed).batch
    groups = shortened(batch.groups, cut.split) if cut.aligned else batch.groups
    plan = plan_all(batch, groups, tokens, cut)
    row_of_token = np.repeat(np.arange(len(batch.kv_lengths)), batch.query_lengths)
    position = np.concatenate(
        [np.arange(end - n, end) for n, end in zip(batch.query_lengths, batch.kv_lengths, strict=True)]
    )
    parts: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for item in plan.items.tolist():
        assert item[END] - item[BEGIN] <= cut.split
        assert not cut.aligned or item[BEGIN] % cut.split == 0
        for n in range(item[TOKENS]):
            token = item[TOKEN] + n
            assert item[POSITION] in (UNLIMITED, position[token] - n)
            seen = min(item[END], int(position[token]) + 1)
            place = item[PARTIAL] + n * item[STRIDE] if item[PARTIAL] >= 0 else -1
            parts[token].append((place, item[BEGIN], seen))
            page = np.arange(item[BEGIN], seen) // batch.page_size
            tables = batch.page_tables[item[ROW]], batch.page_tables[row_of_token[token]]
            assert np.array_equal(tables[0][page], tables[1][page])
    merges = {token: list(range(first, first + count)) for token, first, count in plan.merges.tolist()}
    assert len(merges) == len(plan.merges)
    places = [place for token in parts for place, _, _ in parts[token] if place >= 0]
    assert len(places) == len(set(places)) and max(places, default=-1) < plan.partials
    for token in range(batch.tokens):
        ordered = sorted(parts[token])
        assert [place for place, _, _ in ordered] == merges.get(token, [-1])
        covered = 0
        for _, begin, seen in ordered:
            assert begin == covered or begin >= seen
            covered = max(covered, seen)
        assert covered == position[token] + 1


def test_the_keys_of_a_group_begin_where_those_of_the_group_around_it_end() -> None:
    assert first_keys([(0, 6, 16), (1, 4, 48), (2, 2, 64), (4, 1, 80), (5, 1, 32), (6, 2, 16)]) == [
        0, 16, 48, 48, 16, 0,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "groups",
    [
        ((0, 3, 16), (2, 2, 32)),
        ((0, 2, 32), (0, 2, 32)),
        ((0, 2, 16), (0, 4, 32)),
        ((0, 2, 64),),
        ((2, 3, 16),),
    ],
    ids=["overlap", "no more keys", "wider than the outer one", "more keys than a row", "more than all rows"],
)
def test_wrong_groups_are_refused(groups: tuple[tuple[int, int, int], ...]) -> None:
    tables = [np.arange(4, dtype=np.int32)] * 4
    with pytest.raises(AssertionError):
        AttentionBatch.build([1] * 4, [50] * 4, tables, 16, torch.device("cpu"), groups)
