"""Rows that share leading pages are grouped, in as many levels as save time."""

from __future__ import annotations

import random
from functools import cache
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pytest
from arbora.runtime.messages import GroupCost, RowGroup
from arbora.runtime.scheduler.groups import (
    Node,
    _best_groups,
    _best_levels,
    _prefix_tree,
    order_and_group,
)
from hypothesis import given
from hypothesis import strategies as st

PAGE = 16
COST = GroupCost()
OF_SHORT = GroupCost(min_shared_tokens=64)
TABLES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7), min_size=1, max_size=12)
Table = tuple[int, ...]


class OneRow(NamedTuple):
    table: Table
    decodes: bool = True


ROWS = st.lists(
    st.builds(
        lambda table, decodes: OneRow((9, *table), decodes),
        st.lists(st.integers(0, 2), min_size=1, max_size=7),
        st.sampled_from([True, True, False]),
    ),
    min_size=2,
    max_size=12,
).map(lambda rows: sorted(rows, key=lambda row: packed(row.table)))
"""decode rows and chunks whose first page is the same, sorted"""


def packed(pages: list[int] | Table) -> bytes:
    return np.array(pages, np.int32).tobytes()


def tree_of_rows(source: random.Random, rows: int) -> list[list[int]]:
    """Tables of rows in a random tree, of runs of up to twelve pages."""
    ids = iter(range(1 << 20))

    def below(count: int) -> list[list[int]]:
        run = [next(ids) for _ in range(source.randint(1, 12))]
        if count == 1:
            return [run]
        parts: list[list[int]] = []
        while count:
            some = source.randint(1, max(1, count - 1))
            parts += below(some)
            count -= some
        return [run + part for part in parts]

    tables = below(rows)
    source.shuffle(tables)
    return tables


def cost(rows: list[OneRow], groups: list[tuple[int, int, int]], merged: float) -> float:
    """Pages that decode rows read, and those that could be read while their partial results are merged.

    groups: (first row, rows, pages), outer ones first
    """
    covered = [0] * len(rows)
    total = 0.0
    for first, count, pages in groups:
        assert len(set(covered[first : first + count])) == 1 and pages > covered[first]
        decoding = sum(row.decodes for row in rows[first : first + count])
        total += pages - covered[first] + decoding * merged
        covered[first : first + count] = [pages] * count
    return total + sum(row.decodes * (len(row.table) - done) for row, done in zip(rows, covered, strict=True))


def lowest_cost(every: list[OneRow], merged: float) -> float:
    """The lowest cost of all choices of groups among the shared prefixes of sorted tables."""
    prefixes = {row.table[:pages] for row in every for pages in range(len(row.table) + 1)}

    @cache
    def lowest(prefix: Table, covered: int) -> float:
        rows = [row for row in every if row.table[: len(prefix)] == prefix]
        if len(rows) == 1:
            return float(rows[0].decodes * (len(rows[0].table) - covered))

        def below(outer: int) -> float:
            ends = sum(row.decodes for row in rows if row.table == prefix) * (len(prefix) - outer)
            longer = {p for p in prefixes if len(p) == len(prefix) + 1 and p[:-1] == prefix}
            return float(ends + sum(lowest(p, outer) for p in longer))

        merging = sum(row.decodes for row in rows) * merged
        grouped = len(prefix) - covered + merging + below(len(prefix))
        return min(below(covered), grouped) if len(prefix) > covered else below(covered)

    return lowest((), 0)


def lowest_of_levels(
    rows: list[OneRow], groups: list[tuple[int, int, int]], merged: float, levels: int
) -> float:
    """The lowest cost of all subsets of groups, of which no more than `levels` contain one another."""

    def depth(chosen: tuple[tuple[int, int, int], ...]) -> int:
        return max((sum(g[0] <= row < g[0] + g[1] for g in chosen) for row in range(len(rows))), default=0)

    subsets = (chosen for size in range(len(groups) + 1) for chosen in combinations(groups, size))
    return min(cost(rows, list(chosen), merged) for chosen in subsets if depth(chosen) <= levels)


def lowest_single_level(tables: list[Table], merged: float) -> float:
    """The lowest cost of all choices of disjoint groups of sorted tables."""
    best = [0.0]
    for last in range(1, len(tables) + 1):
        choices = [best[-1] + len(tables[last - 1])]
        for first in range(last - 1):
            rows = tables[first:last]
            shared = min(len(rows[0]), len(rows[-1]))
            pages = next((i for i in range(shared) if rows[0][i] != rows[-1][i]), shared)
            if pages * PAGE >= COST.min_shared_tokens:
                own = sum(len(table) - pages for table in rows)
                choices.append(best[first] + own + pages + len(rows) * merged)
        best.append(min(choices))
    return best[-1]


def tree_of(rows: list[OneRow]) -> list[Node]:
    return _prefix_tree([packed(row.table) for row in rows], [row.decodes for row in rows])


@given(rows=ROWS, merged=st.sampled_from([0.25, 0.5, 1.0, 1.5]))
def test_no_other_choice_of_groups_costs_less(rows: list[OneRow], merged: float) -> None:
    chosen = _best_groups(tree_of(rows), merged, min_pages=1)
    groups = [(node.first, node.rows, node.pages) for node in chosen]
    assert cost(rows, groups, merged) == pytest.approx(lowest_cost(rows, merged))


@given(rows=ROWS, merged=st.sampled_from([0.01, 0.5]), levels=st.integers(1, 3))
def test_no_other_choice_of_so_many_levels_costs_less(rows: list[OneRow], merged: float, levels: int) -> None:
    every = _best_groups(tree_of(rows), merged, min_pages=1)
    kept = [(node.first, node.rows, node.pages) for node in _best_levels(every, merged, levels)]
    groups = [(node.first, node.rows, node.pages) for node in every]
    assert set(kept) <= set(groups)
    assert cost(rows, kept, merged) == pytest.approx(lowest_of_levels(rows, groups, merged, levels))


def test_of_a_long_chain_of_groups_as_many_are_kept_as_a_device_has_levels() -> None:
    tables = [packed(list(range(1, row + 2))) for row in range(1024)]
    _, groups = order_and_group(tables, PAGE, GroupCost(levels=3))
    assert len(groups) == 3


@given(seed=st.integers(0, 10_000), rows=st.integers(2, 24))
def test_several_levels_cost_at_most_as_much_as_one(seed: int, rows: int) -> None:
    tables = tree_of_rows(random.Random(seed), rows)
    order, groups = order_and_group([packed(table) for table in tables], PAGE, COST)
    ordered = [tuple(tables[row]) for row in order]
    found = [(group.first_row, group.rows, group.shared_tokens // PAGE) for group in groups]
    merged = COST.merged_tokens / PAGE
    lowest = lowest_single_level(ordered, merged)
    assert cost([OneRow(table) for table in ordered], found, merged) <= lowest + 1e-9


@given(tables=TABLES, page_size=st.sampled_from([16, 32, 64]))
def test_every_row_has_one_place_and_the_rows_of_a_group_share_its_pages(
    tables: list[list[int]], page_size: int
) -> None:
    order, groups = order_and_group([packed(table) for table in tables], page_size, OF_SHORT)
    assert sorted(order) == list(range(len(tables)))
    for group in groups:
        members = [tables[row] for row in order[group.first_row : group.first_row + group.rows]]
        assert len(members) == group.rows > 1
        assert len({tuple(pages[: group.shared_tokens // page_size]) for pages in members}) == 1


@given(tables=TABLES, page_size=st.sampled_from([16, 32, 64]))
def test_groups_are_disjoint_or_inside_an_earlier_one_that_shares_less(
    tables: list[list[int]], page_size: int
) -> None:
    _, groups = order_and_group([packed(table) for table in tables], page_size, OF_SHORT)
    for at, inner in enumerate(groups):
        for outer in groups[:at]:
            end = outer.first_row + outer.rows
            inside = inner.first_row + inner.rows <= end and inner.shared_tokens > outer.shared_tokens
            assert inner.first_row >= end or (inside and inner.first_row >= outer.first_row)


def test_a_system_prompt_documents_and_conversations_are_three_levels() -> None:
    system, documents = list(range(64)), [list(range(100 * d, 100 * d + 64)) for d in range(1, 5)]
    turns = [[1000 + 20 * turn + page for page in range(16)] for turn in range(8)]
    tables = [
        [*system, *documents[row // 8], *turns[row // 4], 10_000 + row, 20_000 + row] for row in range(32)
    ]
    random.Random(0).shuffle(tables)
    _, groups = order_and_group([packed(table) for table in tables], PAGE, COST)
    document = [RowGroup(8 * d, 8, 128 * PAGE) for d in range(4)]
    turn = [RowGroup(4 * t, 4, 144 * PAGE) for t in range(8)]
    by_row: dict[int, list[RowGroup]] = {group.first_row: [] for group in turn}
    for group in [*document, *turn]:
        by_row[group.first_row].append(group)
    assert groups == [RowGroup(0, 32, 64 * PAGE), *(group for row in by_row for group in by_row[row])]


def test_an_outermost_group_shares_at_least_so_many_tokens() -> None:
    fewest = COST.min_shared_tokens // PAGE
    for pages in (fewest - 1, fewest):
        tables = [packed([*range(pages), 1000 + row]) for row in range(20)]
        assert len(order_and_group(tables, PAGE, COST)[1]) == (pages == fewest)


def test_chunks_join_decode_rows_but_make_no_group() -> None:
    document = list(range(16))
    tables = [packed([*document, 100 + row]) for row in range(2)] + [packed(document)]
    order, groups = order_and_group(tables, PAGE, COST, chunks=1)
    assert sorted(order) == [0, 1, 2] and groups == [RowGroup(0, 3, 256)]
    assert order_and_group(tables, PAGE, COST, chunks=2)[1] == []


@given(rows=ROWS, page_size=st.sampled_from([64, 128]))
def test_chunks_take_no_group_away_from_decode_rows(rows: list[OneRow], page_size: int) -> None:
    decoding = [packed(row.table) for row in rows if row.decodes]
    chunks = [packed(row.table) for row in rows if not row.decodes]
    alone, with_chunks = (
        saved_tokens(*order_and_group([*decoding, *more], page_size, COST, len(more)), len(decoding))
        for more in ([], chunks)
    )
    assert with_chunks == alone


def saved_tokens(order: list[int], groups: list[RowGroup], decode_rows: int) -> dict[int, list[int]]:
    """The tokens that each decode row shares in a group with others, by row."""
    shared: dict[int, list[int]] = {row: [] for row in range(decode_rows)}
    for group in groups:
        for row in order[group.first_row : group.first_row + group.rows]:
            if row < decode_rows:
                shared[row].append(group.shared_tokens)
    return shared


@pytest.mark.parametrize("rows", [1024, 4096])
def test_thousands_of_rows_that_share_one_prefix_are_one_group(rows: int) -> None:
    tables = [packed([*range(8), 1000 + row]) for row in range(rows)]
    _, [group] = order_and_group(tables, PAGE, COST)
    assert (group.first_row, group.rows, group.shared_tokens) == (0, rows, 8 * PAGE)


def test_a_chain_of_thousands_of_prefixes_each_longer_than_the_last_is_split() -> None:
    tables = [packed(list(range(1, row + 2))) for row in range(2048)]
    order, groups = order_and_group(tables, PAGE, COST)
    assert order == list(range(2048))
    assert 10 < len(groups) < 200
    assert all(group.first_row + group.rows == 2048 for group in groups)
