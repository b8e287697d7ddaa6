"""Groups decode rows that share leading pages, so that attention reads these pages once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from ...radix_cache import common_tokens
from ..messages import RowGroup

MIN_SHARED_TOKENS = 64  # with fewer, reading twice costs less than merging


class Span(NamedTuple):
    """Rows [first, last) of a sorted list that share their first `pages` pages."""

    first: int
    last: int
    pages: int

    @property
    def saved(self) -> int:
        return (self.last - self.first - 1) * self.pages


def order_and_group(page_tables: Sequence[bytes], page_size: int) -> tuple[list[int], list[RowGroup]]:
    """Returns an order of the rows (indices into `page_tables`) and the groups in that order.

    page_tables: int32 page ids of each row, packed
    """
    by_first_page: dict[bytes, list[int]] = defaultdict(list)
    for row, table in enumerate(page_tables):
        by_first_page[table[:4]].append(row)
    order: list[int] = []
    groups: list[RowGroup] = []
    for rows in by_first_page.values():
        if len(rows) > 1:
            rows.sort(key=page_tables.__getitem__)
            for span in _best_spans([page_tables[row] for row in rows]):
                shared = span.pages * page_size
                if span.last - span.first > 1 and shared >= MIN_SHARED_TOKENS:
                    groups.append(RowGroup(len(order) + span.first, span.last - span.first, shared))
        order += rows
    return order, groups


class _Run(NamedTuple):
    """Consecutive rows whose best spans are known: those from `spans` on, which save `saved` page reads."""

    first: int
    saved: int
    spans: int


def _best_spans(tables: list[bytes]) -> list[Span]:
    """Splits sorted tables into spans that save the most page reads.

    Shared prefixes of sorted tables form a tree: either all rows share the shortest common prefix, or
    each side of it does better alone. The tree is evaluated from left to right with two stacks, so that
    the work grows with the number of rows and not with the tree's depth.
    """
    common = [common_tokens(a, b) for a, b in pairwise(tables)]
    spans: list[Span] = []
    runs: list[_Run] = []
    cuts: list[int] = []  # pages shared across the cut between two of `runs`, never falling
    for row, shared in enumerate([*common, -1]):
        runs.append(_Run(row, 0, len(spans)))
        spans.append(Span(row, row + 1, 0))
        while cuts and cuts[-1] > shared:
            right, left = runs.pop(), runs.pop()
            runs.append(_joined(left, right, Span(left.first, row + 1, cuts.pop()), spans))
        cuts.append(shared)
    return spans


def _joined(left: _Run, right: _Run, whole: Span, spans: list[Span]) -> _Run:
    """Both runs as one, which becomes a single span unless the spans of both save more."""
    apart = left.saved + right.saved
    if apart > whole.saved:
        return _Run(left.first, apart, left.spans)
    spans[left.spans :] = [whole]
    return _Run(left.first, whole.saved, left.spans)
