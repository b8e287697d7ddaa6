"""Decode rows that share leading pages stand together, so that attention reads those once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from ...radix_cache import common_tokens
from ..messages import RowGroup

MIN_SHARED_TOKENS = 64  # below, reading twice costs less than merging


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


def _best_spans(tables: list[bytes]) -> list[Span]:
    """Splits sorted tables into spans that save the most page reads.

    Shared prefixes of sorted tables form a tree: either all rows share the shortest common prefix, or
    each side of it does better alone.
    """
    common = [common_tokens(a, b) for a, b in pairwise(tables)]

    def split(first: int, last: int) -> tuple[int, list[Span]]:
        if last - first == 1:
            return 0, [Span(first, last, 0)]
        cut = min(range(first, last - 1), key=common.__getitem__)
        whole = Span(first, last, common[cut])
        saved_left, left = split(first, cut + 1)
        saved_right, right = split(cut + 1, last)
        if saved_left + saved_right > whole.saved:
            return saved_left + saved_right, left + right
        return whole.saved, [whole]

    return split(0, len(tables))[1]
