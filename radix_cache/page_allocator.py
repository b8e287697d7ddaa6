"""Allocates pages in runs of consecutive ids, so that a request's pages lie next to each other."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from itertools import pairwise
from operator import sub


class PageAllocator:
    """Allocates page ids 0 … `num_pages` - 1, preferably in ascending runs.

    A run is a maximal range of free ids. `_starts` and `_ends` find the runs next to a freed page (boundary
    tags); `_by_length` finds the smallest run that is long enough (best fit).
    """

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self.num_free = 0
        self._starts: dict[int, int] = {}  # first id of each run -> one past its last id
        self._ends: dict[int, int] = {}  # one past the last id of each run -> its first id
        self._by_length: list[tuple[int, int]] = []  # (length, first id) of each run, sorted
        if num_pages:
            self._add_run(0, num_pages)

    def take(self, count: int, after: int | None = None) -> list[int]:
        """Allocates `count` pages. At least `count` pages must be free.

        The ids that follow page `after` come first if they are free. The rest is one run if any is long
        enough, otherwise as few runs as possible.
        """
        assert count <= self.num_free, f"asked for {count} pages, {self.num_free} are free"
        pages: list[int] = []
        if after is not None and after + 1 in self._starts:
            pages += self._take_from(after + 1, count)
        while len(pages) < count:
            pages += self._take_from(self._best_start(count - len(pages)), count - len(pages))
        return pages

    def free(self, pages: Iterable[int]) -> None:
        """Frees pages that are in use; neighbours join into runs."""
        for start, end in list_runs(sorted(pages)):
            self._merge_run(start, end)

    def free_runs(self) -> list[tuple[int, int]]:
        """The free ranges, half-open, in ascending order."""
        return sorted(self._starts.items())

    def _best_start(self, count: int) -> int:
        index = bisect_left(self._by_length, (count, 0))
        return self._by_length[min(index, len(self._by_length) - 1)][1]

    def _take_from(self, start: int, count: int) -> range:
        end = self._remove_run(start)
        cut = min(start + count, end)
        if cut < end:
            self._add_run(cut, end)
        return range(start, cut)

    def _merge_run(self, start: int, end: int) -> None:
        before = self._ends.get(start)
        if before is not None:
            self._remove_run(before)
            start = before
        if end in self._starts:
            end = self._remove_run(end)
        self._add_run(start, end)

    def _add_run(self, start: int, end: int) -> None:
        self._starts[start] = end
        self._ends[end] = start
        insort(self._by_length, (end - start, start))
        self.num_free += end - start

    def _remove_run(self, start: int) -> int:
        end = self._starts.pop(start)
        del self._ends[end]
        del self._by_length[bisect_left(self._by_length, (end - start, start))]
        self.num_free -= end - start
        return end


def list_runs(pages: list[int]) -> list[tuple[int, int]]:
    """The half-open ranges of consecutive ids in `pages`, an ascending list."""
    if not pages:
        return []
    if pages[-1] - pages[0] == len(pages) - 1:
        return [(pages[0], pages[-1] + 1)]
    breaks = [i for i, step in enumerate(map(sub, pages[1:], pages), 1) if step != 1]
    bounds = [0, *breaks, len(pages)]
    return [(pages[a], pages[b - 1] + 1) for a, b in pairwise(bounds)]
