"""Decode rows that share leading pages are grouped."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from arbora.runtime.scheduler.groups import Span, _best_spans, order_and_group
from hypothesis import given
from hypothesis import strategies as st

PAGE = 16
TABLES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7), min_size=1, max_size=12)


def packed(pages: list[int]) -> bytes:
    return np.array(pages, np.int32).tobytes()


def common_pages(left: list[int], right: list[int]) -> int:
    same = [a == b for a, b in zip(left, right, strict=False)]
    return same.index(False) if False in same else len(same)


def spans_by_definition(tables: list[list[int]]) -> list[Span]:
    """All rows together where they share least, or the best of each side if that saves more."""
    common = [common_pages(a, b) for a, b in pairwise(tables)]

    def split(first: int, last: int) -> tuple[int, list[Span]]:
        if last - first == 1:
            return 0, [Span(first, last, 0)]
        cut = min(range(first, last - 1), key=common.__getitem__)
        (saved_left, left), (saved_right, right) = split(first, cut + 1), split(cut + 1, last)
        whole = Span(first, last, common[cut])
        if saved_left + saved_right > whole.saved:
            return saved_left + saved_right, left + right
        return whole.saved, [whole]

    return split(0, len(tables))[1]


@given(tables=TABLES)
def test_spans_save_as_much_as_the_best_split_of_each_shared_prefix(tables: list[list[int]]) -> None:
    tables.sort()
    assert _best_spans([packed(table) for table in tables]) == spans_by_definition(tables)


@given(tables=TABLES)
def test_every_row_has_one_place_and_the_rows_of_a_group_share_its_pages(tables: list[list[int]]) -> None:
    order, groups = order_and_group([packed(table) for table in tables], PAGE)
    assert sorted(order) == list(range(len(tables)))
    for group in groups:
        members = [tables[row] for row in order[group.first_row : group.first_row + group.rows]]
        assert len({tuple(pages[: group.shared_tokens // PAGE]) for pages in members}) == 1
    places = [place for group in groups for place in range(group.first_row, group.first_row + group.rows)]
    assert len(places) == len(set(places))


@pytest.mark.parametrize("rows", [1024, 4096])
def test_thousands_of_rows_that_share_one_prefix_are_one_group(rows: int) -> None:
    tables = [packed([*range(8), 1000 + row]) for row in range(rows)]
    _, [group] = order_and_group(tables, PAGE)
    assert (group.first_row, group.rows, group.shared_tokens) == (0, rows, 8 * PAGE)


def test_a_chain_of_thousands_of_prefixes_each_longer_than_the_last_is_split() -> None:
    tables = [packed(list(range(1, row + 2))) for row in range(2048)]
    order, groups = order_and_group(tables, PAGE)
    assert len(order) == 2048
    assert groups
