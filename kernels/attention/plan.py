"""Divides the attention of a step into work items, for any device.

A work item is a range of one row's keys, or of the keys that a group of rows shares, with the query tokens
that see it. An item with all keys of its queries writes the output; other items write partial results, which
are merged by log-sum-exp.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..common.jit import compiled_fast
from .batch import AttentionBatch, Group, Reach

TOKEN, TOKENS, POSITION, BEGIN, END, ROW, PARTIAL, STRIDE, COLUMNS = range(9)
"""Columns of an item: first query token; number of query tokens; key position of the first (or UNLIMITED);
key positions [BEGIN, END) to read; row whose pages have them; index of the first query token's partial result
(-1: write the output); distance between the partial results of two query tokens."""

UNLIMITED = 1 << 29
"""Position of queries that see all keys of their item."""


@dataclass(frozen=True)
class ItemPlan:
    items: np.ndarray
    """int64 [items, COLUMNS]"""
    merges: np.ndarray
    """int64 [merges, 3]: query token, first partial result, number of partial results"""
    partials: int

    def having(self, tokens: NDArray[np.int64]) -> tuple[NDArray[np.bool_], "ItemPlan"]:
        """Leaves out the items without any of these query tokens, and the merges of other tokens.

        Returns which items are kept, bool [items], and the shorter plan.
        """
        first, ends = self.items[:, TOKEN], self.items[:, TOKEN] + self.items[:, TOKENS]
        wanted = np.zeros(int(ends.max(initial=0)) + 1, np.int64)
        wanted[tokens + 1] = 1
        before = np.cumsum(wanted)
        is_kept = before[ends] > before[first]
        merges = self.merges[wanted[self.merges[:, 0] + 1] > 0]
        return is_kept, ItemPlan(self.items[is_kept], merges, self.partials)


NO_GROUPS = np.zeros((0, 3), np.int64)
NOTHING = ItemPlan(np.zeros((0, COLUMNS), np.int64), np.zeros((0, 3), np.int64), 0)


@dataclass(frozen=True)
class Cut:
    """Items have at most `split` keys; if `aligned`, they begin at multiples of `split`."""

    split: int
    aligned: bool = False


class ItemSizes(NamedTuple):
    """What limits the keys and the query tokens of items."""

    tokens: int
    split: int
    align: int
    reach: int
    """see `Reach.code`"""

    @staticmethod
    def of(tokens: int, cut: Cut, reach: Reach) -> "ItemSizes":
        return ItemSizes(tokens, cut.split, cut.split if cut.aligned else 1, reach.code)


def plan_items(
    batch: AttentionBatch,
    groups: tuple[Group, ...],
    covered: np.ndarray,
    tokens: int,
    cut: Cut,
    reach: Reach,
) -> ItemPlan:
    """Returns the items of the `covered` rows, each of at most `tokens` query tokens and of the keys that
    `cut` allows.

    covered: bool [rows]; `groups` have only such rows

    The shared keys of rows in `groups` belong to items of the group. The items of an inner group have the
    keys that the outer group does not share. The tokens of the rows of `groups` must see all keys of
    their rows.
    """
    lengths, queries = batch.kv_lengths.astype(np.int64), batch.query_lengths.astype(np.int64)
    sizes = ItemSizes.of(tokens, cut, reach)
    return ItemPlan(*_cut_all(queries, lengths, lay_out(groups), covered, sizes))


def lay_out(groups: tuple[Group, ...]) -> NDArray[np.int64]:
    """Groups for kernels, int64 [groups, 3]."""
    return np.array(groups, np.int64) if groups else NO_GROUPS


@compiled_fast
def first_key(position, reach):
    """The first key that a token sees. reach: see `Reach.code`"""
    if reach < 0:
        return position // -reach * -reach
    return max(0, position + 1 - reach)


@compiled_fast
def first_blind(key, reach):
    """The first position, from which on no token sees the key. reach: see `Reach.code`"""
    if reach < 0:
        return (key // -reach + 1) * -reach
    return key + reach


@compiled_fast
def _lay_out_groups(lengths, queries, groups, split):
    """Returns (layout, levels, number of partial results of groups).

    layout: int64 [rows, 4]: shared keys, first partial result (-1: none); for each of its query tokens the
    number of partial results of the shared keys, and of all keys. levels: int64 [groups, 3]: first key that
    no outer group shares, its partial result for the group's first token, distance between the partial
    results of two tokens.
    """
    layout = np.zeros((len(lengths), 4), np.int64)
    layout[:, 1] = -1
    levels = np.zeros((len(groups), 3), np.int64)
    for g in range(len(groups)):
        first, count, end = groups[g]
        begin, parts = layout[first, 0], layout[first, 2]
        levels[g] = (begin, parts, 0)
        parts += (end - begin + split - 1) // split
        for row in range(first, first + count):
            layout[row, 0], layout[row, 2] = end, parts
    partials = 0
    for g in range(len(groups)):
        first, count, _ = groups[g]
        if levels[g, 0] == 0:
            stride = 0
            for row in range(first, first + count):
                own = lengths[row] - layout[row, 0]
                stride = max(stride, layout[row, 2] + (own + split - 1) // split)
            for row in range(first, first + count):
                layout[row, 1], layout[row, 3] = partials, stride
                partials += queries[row] * stride
        levels[g, 1] += layout[first, 1]
        levels[g, 2] = layout[first, 3]
    return layout, levels, partials


@compiled_fast
def _cut_all(queries, lengths, groups, covered, sizes):
    """Returns the items, the merges, and the number of partial results."""
    places = count_places(queries, lengths, groups, covered, sizes)
    items, merges = np.empty((places[0], COLUMNS), np.int64), np.empty((places[1], 3), np.int64)
    made, merged, partials = cut_into(queries, lengths, groups, covered, sizes, items, merges)
    return items[:made], merges[:merged], partials


@compiled_fast
def count_places(queries, lengths, groups, covered, sizes):
    """The most items and merges that `cut_into` can write."""
    tokens, split, _, _ = sizes
    items, merges = 0, 0
    for row in range(len(queries)):
        merges += queries[row]
        if covered[row]:
            items += (queries[row] + tokens - 1) // tokens * (lengths[row] // split + 2)
    for g in range(len(groups)):
        first, count, end = groups[g]
        blocks = (queries[first : first + count].sum() + tokens - 1) // tokens
        items += blocks * (end // split + 1)
    return items, merges


@compiled_fast
def cut_into(queries, lengths, groups, covered, sizes, items, merges):
    """Writes the items and the merges. Returns how many there are of each, and of partial results."""
    tokens, split, _, _ = sizes
    layout, levels, partials = _lay_out_groups(lengths, queries, groups, split)
    first_tokens = np.zeros(len(queries) + 1, np.int64)
    for row in range(len(queries)):
        first_tokens[row + 1] = first_tokens[row] + queries[row]
    made = _cut_groups(groups, first_tokens, levels, tokens, split, items)
    rows = queries, lengths, covered, layout
    return _cut_rows(rows, sizes, partials, items, merges, made)


@compiled_fast
def _cut_groups(groups, first_tokens, levels, tokens, split, items):
    """Writes items for the shared keys of groups. Returns their number."""
    made = 0
    for g in range(len(groups)):
        first, count, end = groups[g]
        first_key, first_partial, stride = levels[g]
        first_token, end_token = first_tokens[first], first_tokens[first + count]
        for begin in range(first_key, end, split):
            for token in range(first_token, end_token, tokens):
                to = first_partial + (token - first_token) * stride + (begin - first_key) // split
                some = min(tokens, end_token - token)
                stop = min(end, begin + split)
                items[made] = (token, some, UNLIMITED, begin, stop, first, to, stride)
                made += 1
    return made


@compiled_fast
def _cut_rows(rows, sizes, partials, items, merges, made):
    """Writes items for the keys that are not shared. Returns the numbers of items, merges and partial results
    so far.

    Without a group, the first key is a multiple of `align` even if the keys before it are hidden.
    """
    queries, lengths, covered, layout = rows
    tokens, split, align, reach = sizes
    merged = 0
    token = 0
    for row in range(len(queries)):
        for block in range(0, queries[row] if covered[row] else 0, tokens):
            some = min(tokens, queries[row] - block)
            position = lengths[row] - queries[row] + block
            begin = max(layout[row, 0], first_key(position, reach) // align * align)
            end = position + some
            parts = (end - begin + split - 1) // split
            first = -1
            stride = 0
            if layout[row, 1] >= 0:
                stride = layout[row, 3]
                shared = layout[row, 1] + block * stride
                first = shared + layout[row, 2]
                for t in range(some):
                    merges[merged] = (token + block + t, shared + t * stride, layout[row, 2] + parts)
                    merged += 1
            elif parts > 1:
                first = partials
                stride = parts
                partials += parts * some
                for t in range(some):
                    merges[merged] = (token + block + t, first + t * parts, parts)
                    merged += 1
            for part in range(parts):
                start = begin + part * split
                to = first + part if first >= 0 else -1
                items[made] = (token + block, some, position, start, min(end, start + split), row, to, stride)
                made += 1
        token += queries[row]
    return made, merged, partials


@compiled_fast
def best_split(
    keys: np.ndarray, most: int, kv_heads: int, at_a_time: int, least: int, unit: int, cost: int
) -> int:
    """Returns how many keys an item may have at most, so that all items together take the least time: the
    number of turns, multiplied by an item's keys plus `cost`.

    keys: int64 [items], before they are split; most: items that splitting may add; at_a_time: programs that
    run at the same time, one for each item and KV head. Items have at least `least` keys, in steps of `unit`;
    an item costs as much as `cost` more keys.
    """
    longest = 1
    for each in keys:
        longest = max(longest, each)
    best, lowest = 0, 0
    for pieces in range(1, min(longest // least, most) + 2):
        split = max(-(-longest // pieces // unit) * unit, least)
        items = 0
        for each in keys:
            items += (each + split - 1) // split
        spent = -(-items * kv_heads // at_a_time) * (split + cost)
        if items <= len(keys) + most and (best == 0 or spent < lowest):
            best, lowest = split, spent
    return best
