# mypy: disable-error-code="no-untyped-def,no-untyped-call"
"""Divide a step's CPU attention into work items over runs of consecutive slots (see `attention_numba`)."""

from dataclasses import dataclass

import numpy as np

from .attention_batch import AttentionBatch
from .attention_numba import NO_WINDOW, UNLIMITED
from .numba_tools import compiled

MAX_ITEM_QUERIES = 16
"""Query heads that share one pass over the keys: more amortise no more, and leave the first-level cache."""

MIN_SPLIT = 512
"""Keys below which an item is not split for the sake of more threads."""


@dataclass(frozen=True)
class ItemPlan:
    """The items of a step, the runs they read and the merges that follow, as int64 tables."""

    items: np.ndarray
    runs: np.ndarray
    run_offsets: np.ndarray
    """[rows + 1]: the runs of row r are runs[run_offsets[r] : run_offsets[r + 1]]"""
    merges: np.ndarray
    """[merges, 3]: query token, first partial result, how many"""
    partials: int
    shared_partials: np.ndarray
    """[groups, 2]: first partial result of the shared part, distance between query tokens"""

    def row_runs(self, row: int) -> np.ndarray:
        return self.runs[self.run_offsets[row] : self.run_offsets[row + 1]]


def plan_items(
    batch: AttentionBatch,
    groups: tuple[tuple[int, int, int], ...],
    repeat: int,
    splits: int,
    window: int | None,
    elsewhere_rows: np.ndarray,
    elsewhere_groups: np.ndarray,
) -> ItemPlan:
    """Divide the work, leaving out rows and shared parts of groups that are computed elsewhere (bool arrays).

    repeat: query heads for each KV head. splits: pieces into which the longest row is cut at least.
    """
    lengths = batch.kv_lengths.astype(np.int64)
    pages = -(-lengths // batch.page_size)
    tables = [table[:count] for table, count in zip(batch.page_tables, pages, strict=True)]
    joined = np.concatenate(tables) if tables else np.empty(0, np.int32)
    runs, run_offsets = _find_runs(joined, lengths, pages, batch.page_size)
    longest = int(lengths.max(initial=1))
    items, merges, shared_partials, partials = _cut(
        batch.query_lengths.astype(np.int64),
        lengths,
        runs,
        run_offsets,
        np.asarray(groups, dtype=np.int64).reshape(-1, 3),
        elsewhere_rows,
        elsewhere_groups,
        max(1, MAX_ITEM_QUERIES // repeat),
        max(MIN_SPLIT, -(-longest // splits)),
        NO_WINDOW if window is None else window,
    )
    return ItemPlan(items, runs, run_offsets, merges, partials, shared_partials)


@compiled
def _find_runs(tables, lengths, pages, page_size):
    """Coalesce consecutive pages of each row."""
    rows = len(lengths)
    runs = np.empty((len(tables), 3), np.int64)
    offsets = np.empty(rows + 1, np.int64)
    found = 0
    page = 0
    for row in range(rows):
        offsets[row] = found
        for index in range(pages[row]):
            keys = min(page_size, lengths[row] - index * page_size)
            if index > 0 and tables[page] == tables[page - 1] + 1:
                runs[found - 1, 2] += keys
            else:
                runs[found] = (index * page_size, np.int64(tables[page]) * page_size, keys)
                found += 1
            page += 1
    offsets[rows] = found
    return runs[:found].copy(), offsets


@compiled
def _run_at(runs, first, key):
    """The run that holds a key, searching from run `first`."""
    while runs[first, 0] + runs[first, 2] <= key:
        first += 1
    return first


@compiled
def _cut(
    query_lengths, lengths, runs, run_offsets, groups, elsewhere_rows, elsewhere_groups, tokens, split, window
):
    """Items of at most `tokens` query tokens and `split` keys."""
    rows = len(lengths)
    shared = np.zeros(rows, np.int64)
    partial = np.full(rows, -1, np.int64)
    stride = np.zeros(rows, np.int64)
    shared_parts = np.zeros(rows, np.int64)
    shared_partials = np.zeros((len(groups), 2), np.int64)
    partials = 0
    capacity = 0
    for g in range(len(groups)):
        first, count, keys = groups[g]
        parts = 1 if elsewhere_groups[g] else (keys + split - 1) // split
        longest = 0
        for row in range(first, first + count):
            longest = max(longest, lengths[row])
        step = parts + (longest - keys + split - 1) // split
        shared_partials[g] = (partials, step)
        for row in range(first, first + count):
            shared[row] = keys
            partial[row] = partials
            stride[row] = step
            shared_parts[row] = parts
            partials += step
        capacity += parts * count
    for row in range(rows):
        if not elsewhere_rows[row]:
            blocks = (query_lengths[row] + tokens - 1) // tokens
            capacity += blocks * (lengths[row] // split + 2)
    items = np.empty((capacity, 8), np.int64)
    merges = np.empty((query_lengths.sum(), 3), np.int64)
    made = 0
    merged = 0
    for g in range(len(groups)):
        first, count, keys = groups[g]
        if elsewhere_groups[g]:
            continue
        for part in range(shared_parts[first]):
            begin = part * split
            run = _run_at(runs, run_offsets[first], begin)
            for block in range(0, count, tokens):
                where = partial[first] + block * stride[first] + part
                some = min(tokens, count - block)
                end = min(keys, begin + split)
                items[made] = (first + block, some, UNLIMITED, begin, end, run, where, stride[first])
                made += 1
    token = 0
    for row in range(rows):
        queries = query_lengths[row]
        if elsewhere_rows[row]:
            token += queries
            continue
        for block in range(0, queries, tokens):
            some = min(tokens, queries - block)
            position = lengths[row] - queries + block
            begin = max(shared[row], position + 1 - window)
            end = position + some
            parts = (end - begin + split - 1) // split
            where = -1
            step = 0
            if partial[row] >= 0:
                where = partial[row] + shared_parts[row]
                merges[merged] = (token, partial[row], shared_parts[row] + parts)
                merged += 1
            elif parts > 1:
                where = partials
                step = parts
                partials += parts * some
                for t in range(some):
                    merges[merged] = (token + block + t, where + t * parts, parts)
                    merged += 1
            run = run_offsets[row]
            for part in range(parts):
                start = begin + part * split
                run = _run_at(runs, run, start)
                to = where + part if where >= 0 else -1
                items[made] = (token + block, some, position, start, min(end, start + split), run, to, step)
                made += 1
        token += queries
    return items[:made].copy(), merges[:merged].copy(), shared_partials, partials
