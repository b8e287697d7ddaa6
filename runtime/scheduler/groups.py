"""Groups decode rows that share leading pages, so that attention reads these pages once.

Shared prefixes form a tree, such as a system prompt, the documents after it and the conversations about each
document. Groups are nodes of that tree. A group within another one shares the pages after the outer one's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...radix_cache import common_tokens
from ..messages import RowGroup

MIN_SHARED_TOKENS = 64  # of a row's outermost group: with fewer, reading twice costs less than merging
MERGED_TOKENS = 16  # one more partial result of a row and its merge take as long as reading so many tokens
PAGE_ID_BYTES = 4


def order_and_group(page_tables: Sequence[bytes], page_size: int) -> tuple[list[int], list[RowGroup]]:
    """Returns an order of the rows (indices into `page_tables`) and the groups, outer ones first.

    page_tables: int32 page ids of each row, packed
    """
    by_first_page: dict[bytes, list[int]] = defaultdict(list)
    for row, table in enumerate(page_tables):
        by_first_page[table[:PAGE_ID_BYTES]].append(row)
    order: list[int] = []
    groups: list[RowGroup] = []
    for rows in by_first_page.values():
        if len(rows) > 1:
            rows.sort(key=page_tables.__getitem__)
            nodes = _prefix_tree([page_tables[row] for row in rows])
            groups += [
                RowGroup(len(order) + node.first, node.rows, node.pages * page_size)
                for node in _best_groups(nodes, MERGED_TOKENS / page_size, MIN_SHARED_TOKENS / page_size)
            ]
        order += rows
    return order, groups


@dataclass(slots=True, eq=False)
class Node:
    """Rows [first, last) of sorted tables that share their first `pages` pages, and fewer with other rows."""

    first: int
    last: int
    pages: int
    parent: Node | None
    readers: int = 0
    """how many rows and inner groups read its last page, if no group includes all rows of this node"""
    falls: list[tuple[float, int]] = field(default_factory=list)
    """pairs (page, count): the pages before `page` have `count` fewer readers than the node's last page"""
    limit: float = -1.0
    """the node should be a group if the outer groups share at most this many pages"""
    covered: int = 0
    """leading pages that groups read once for all its rows"""

    @property
    def rows(self) -> int:
        return self.last - self.first


def _prefix_tree(tables: list[bytes]) -> list[Node]:
    """The tree of sorted tables, which have the same first page, in preorder."""
    nodes: list[Node] = []
    ranges: list[tuple[int, int, Node | None]] = [(0, len(tables), None)]
    while ranges:
        first, last, parent = ranges.pop()
        node = Node(first, last, common_tokens(tables[first], tables[last - 1]), parent)
        runs = _runs(tables, node)
        node.readers = node.rows - sum(end - begin for begin, end in runs)
        nodes.append(node)
        ranges += [(begin, end, node) for begin, end in reversed(runs)]
    return nodes


def _runs(tables: list[bytes], node: Node) -> list[tuple[int, int]]:
    """Ranges of two or more of the node's rows that share their next page too."""
    begin, runs = node.pages * PAGE_ID_BYTES, []
    end = begin + PAGE_ID_BYTES
    row = node.first
    page = tables[row][begin:end]
    while row + 1 < node.last:
        first, before = row, page
        row += 1
        page = tables[row][begin:end]
        if page == before and page:
            row = bisect_right(tables, page, row, node.last, key=lambda table: table[begin:end])
            runs.append((first, row))
            page = tables[row][begin:end] if row < node.last else b""
    return runs


def _best_groups(nodes: list[Node], merged_pages: float, min_pages: float) -> list[Node]:
    """The nodes that should be groups so that reading and merging cost least, in preorder.

    merged_pages: cost of a row's partial result, in pages read
    """
    for node in reversed(nodes):
        _set_limit(node, merged_pages)
    groups = []
    for node in nodes:
        node.covered = node.parent.covered if node.parent else 0
        if node.covered <= node.limit and (node.covered or node.pages >= min_pages):
            node.covered = node.pages
            groups.append(node)
    return groups


def _set_limit(node: Node, merged_pages: float) -> None:
    """Sets the node's limit, from those of all nodes below it, and adds its readers to its parent's.

    A group saves all readers but one of each page after the outer groups' pages. The fewer pages these share,
    the more it saves. At the limit it saves as much as its partial results cost.
    """
    cost, place, readers = node.rows * merged_pages, float(node.pages), node.readers
    ahead = sorted(node.falls)
    falls: list[tuple[float, int]] = []
    while True:
        saved = (place - (ahead[-1][0] if ahead else 0.0)) * (readers - 1)
        if saved >= cost:
            node.limit = place - cost / (readers - 1)
            falls.append((node.limit, readers - 1))
            break
        if not ahead:
            break
        cost -= saved
        place, by = ahead.pop()
        readers -= by
        falls.append((place, by))
    if node.parent is not None:
        end = node.parent.pages
        node.parent.readers += node.readers - sum(by for place, by in falls if place >= end)
        node.parent.falls += [fall for fall in falls if fall[0] < end]
