"""Groups rows that share leading pages, so that attention reads these pages once.

Shared prefixes form a tree, such as a system prompt, the documents after it and the conversations about each
document. Groups are nodes of that tree. A group within another one shares the pages after the outer one's.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from ...radix_cache import common_tokens
from ..messages import PAGE_ID_BYTES, GroupCost, RowGroup


def order_and_group(
    page_tables: Sequence[bytes], page_size: int, cost: GroupCost, chunks: int = 0
) -> tuple[list[int], list[RowGroup]]:
    """Returns an order of the rows (indices into `page_tables`) and the groups, outer ones first.

    page_tables: int32 page ids of each row, packed; of a chunk, the pages before its first token
    chunks: number of rows with several query tokens; they come last, and join groups that other rows form.
    """
    by_first_page: dict[bytes, list[int]] = defaultdict(list)
    for row, table in enumerate(page_tables):
        by_first_page[table[:PAGE_ID_BYTES]].append(row)
    decode_rows = len(page_tables) - chunks
    order: list[int] = []
    groups: list[RowGroup] = []
    for rows in by_first_page.values():
        if len(rows) > 1:
            rows.sort(key=page_tables.__getitem__)
            tables = [page_tables[row] for row in rows]
            nodes = _prefix_tree(tables, [row < decode_rows for row in rows])
            merged = cost.merged_tokens / page_size
            chosen = _best_groups(nodes, merged, cost.min_shared_tokens / page_size)
            groups += [
                RowGroup(len(order) + node.first, node.rows, node.pages * page_size)
                for node in _best_levels(chosen, merged, cost.levels)
            ]
        order += rows
    return order, groups


@dataclass(slots=True, eq=False)
class Node:
    """Rows [first, last) of sorted tables that share their first `pages` pages. Other rows share fewer."""

    first: int
    last: int
    pages: int
    parent: Node | None
    decode_rows: int
    """number of its rows in decode; chunks do not count in the choice of groups"""
    readers: int = 0
    """how often the node's last page is read if the node is no group: by each decode row, or by each inner
    group
    """
    falls: list[tuple[float, int]] = field(default_factory=list)
    """pairs (page, count): the pages before `page` have `count` fewer readers than the node's last page"""
    limit: float = -1.0
    """the node should be a group if the outer groups share at most this many pages"""
    covered: int = 0
    """leading pages that groups read once for all its rows"""

    @property
    def rows(self) -> int:
        return self.last - self.first


def _prefix_tree(tables: list[bytes], decode: Sequence[bool]) -> list[Node]:
    """Builds the tree of the prefixes that page tables share. Returns its nodes, each before those below it.

    tables: sorted, all with the same first page; decode: whether each row decodes
    """
    nodes: list[Node] = []
    ranges: list[tuple[int, int, Node | None]] = [(0, len(tables), None)]
    before = [0, *accumulate(decode)]  # decode rows
    while ranges:
        first, last, parent = ranges.pop()
        pages = common_tokens(tables[first], tables[last - 1])
        node = Node(first, last, pages, parent, before[last] - before[first])
        runs = _runs(tables, node)
        node.readers = node.decode_rows - sum(before[end] - before[begin] for begin, end in runs)
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

    merged_pages: cost of a decode row's partial result, in pages read
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
    cost, place, readers = node.decode_rows * merged_pages, float(node.pages), node.readers
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


@dataclass(slots=True, eq=False)
class _Choice:
    """A possible group, and those within it.

    `saved[place, left]` is the most pages that they can save. `left` is how many more levels may be kept;
    `place` is the number of the last outer group that is kept (from 1; 0: none).
    """

    node: Node
    outer: list[int]
    """the groups that contain it, outermost first"""
    inner: list[int] = field(default_factory=list)
    """the groups that it contains directly"""
    kept: NDArray[np.bool_] = field(init=False)
    """set, as `saved`, by `_compare`"""
    saved: NDArray[np.float64] = field(init=False)


def _best_levels(groups: list[Node], merged_pages: float, levels: int) -> list[Node]:
    """The groups that save most, in preorder, if at most `levels` of them are nested; 0: no limit."""
    choices = _choices(groups)
    if not levels or all(len(choice.outer) < levels for choice in choices):
        return groups
    for choice in reversed(choices):
        _compare(choice, choices, merged_pages, levels)
    kept: list[Node] = []
    states: list[tuple[int, int]] = []
    for choice in choices:
        place, left = states[choice.outer[-1]] if choice.outer else (0, levels)
        if choice.kept[place, left]:
            kept.append(choice.node)
            place, left = len(choice.outer) + 1, left - 1
        states.append((place, left))
    return kept


def _choices(groups: list[Node]) -> list[_Choice]:
    choices: list[_Choice] = []
    outer: list[int] = []
    for at, node in enumerate(groups):
        while outer and node.first >= groups[outer[-1]].last:
            outer.pop()
        if outer:
            choices[outer[-1]].inner.append(at)
        choices.append(_Choice(node, [*outer]))
        outer.append(at)
    return choices


def _compare(choice: _Choice, choices: list[_Choice], merged_pages: float, levels: int) -> None:
    """Sets what the group's branch saves: with the group or without it, whichever is more."""
    node = choice.node
    covered = np.array([0, *(choices[at].node.pages for at in choice.outer)])
    inner = np.zeros((len(covered) + 1, levels + 1))
    for at in choice.inner:
        inner += choices[at].saved
    own = (node.decode_rows - 1) * (node.pages - covered) - node.decode_rows * merged_pages
    with_it = own[:, None] + inner[-1, :-1]
    choice.saved, choice.kept = inner[:-1].copy(), np.zeros(inner[:-1].shape, np.bool_)
    choice.kept[:, 1:] = with_it > choice.saved[:, 1:]
    choice.saved[:, 1:] = np.maximum(with_it, choice.saved[:, 1:])
