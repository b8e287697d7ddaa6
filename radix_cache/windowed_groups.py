"""The windowed groups of a cache, and the pages that requests, pins and leases use in them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from .leases import Lease, Leases
from .lock import Lock, PrefixMatch
from .path_windows import PathWindows
from .tree import fill_windows
from .windows import KEPT, Reach, WindowGroup, WindowPage, WindowTable


class FullWindow(NamedTuple):
    """A windowed group that lacks pages for a request."""

    reach: Reach
    needed: int  # pages that the request needs at once
    total: int
    pinned: int


class WindowedGroups:
    """Layers that see only the latest tokens are in windowed groups. These have pages of their own, which a
    request gives back once they are behind its window. A match needs only those that its next token sees."""

    def __init__(self, groups: Sequence[WindowGroup], locks: Collection[Lock], leases: Leases) -> None:
        """locks, leases: all of the cache"""
        self.groups = groups
        self._locks = locks
        self._leases = leases

    def path(self, match: PrefixMatch) -> PathWindows:
        """The windowed pages of a match, to ask which shorter matches all groups can serve."""
        return PathWindows(match, self.groups)

    def serve(self, match: PrefixMatch, page_size: int) -> PrefixMatch:
        """The longest part of the match that all groups can serve."""
        return match.cut(self.path(match).longest(match.length), page_size) if self.groups else match

    def have_room(self, match: PrefixMatch, tokens: int, reserve: int, end: int) -> bool:
        """Whether each group has pages for a request that acquires the match (see `PrefixCache.has_room`)."""
        needed = self.path(match).needed(max(end, match.length)) if self.groups else ()
        return all(
            each.group.max_held(tokens) + reserve + self._count_claimed(number, shared={*each.present})
            + (match.tail > 0) <= each.group.available
            for number, each in enumerate(needed)
        )  # fmt: skip

    def find_full(self, tokens: int, to_pin: int) -> FullWindow | None:
        """The first group whose unpinned pages do not suffice for a request of `tokens` tokens, once a prefix
        of `to_pin` tokens is pinned too; None if there is none."""
        pinned = {page for lease in self._leases if not lease.is_breakable for page in lease.windows}
        for number, group in enumerate(self.groups):
            needed = group.max_held(tokens)
            more = -(-to_pin // group.page_size) - group.find_first(to_pin)
            taken = sum(page.group is group for page in pinned) + more
            is_short = more > 0 and more > group.available - self._count_claimed(number)
            if needed + taken > group.num_pages or is_short:
                return FullWindow(group.reach, needed, group.num_pages, taken)
        return None

    def _count_claimed(
        self, group: int, besides: Lock | None = None, shared: Collection[WindowPage] = ()
    ) -> int:
        """Pages of a windowed group that requests need for the rest of their prompts (see `WindowTable`)."""
        others = (lock for lock in self._locks if lock is not besides)
        return sum(lock.windows[group].count_claimed(shared) for lock in others)

    def use(self, match: PrefixMatch, tokens: int, copies_tail: bool, end: int) -> list[WindowTable]:
        """Tables with the windowed pages that the next token of a match sees, or the token at `end` if that
        is later. Pages that the tree lacks are allocated, and a step must restore them.

        copies_tail: whether the page in which the match ends is copied
        """
        tables = []
        needed = self.path(match).needed(max(end, match.length)) if self.groups else ()
        for each in needed:
            for page in each.present:
                each.group.use(page)
            fresh = iter(each.group.take(len(each.lacking), None))
            pages = [page if page is not None else next(fresh) for page in each.pages]
            source = pages.pop() if copies_tail else None
            table = WindowTable(each.group, [*[None] * each.first, *pages], each.first, source, tokens)
            table.marks, table.lacking = [max(end, match.paged), tokens], each.lacking
            tables.append(table)
        return tables

    def enter_restored(self, lock: Lock) -> None:
        """Gives the tree the pages that a step now restores, where its nodes have lost theirs."""
        assert lock.node is not None
        windows = tuple(table.pages for table in lock.windows)
        end = lock.depth // lock.page_size
        for node in lock.node.path():
            end -= len(node.pages)
            if node.parent is not None:
                fill_windows(node.windows, windows, end, len(node.pages))
        for table in lock.windows:
            table.lacking = []

    def end_sources(self, lock: Lock) -> None:
        """Ends the use of the pages from which a copy was made."""
        for table in lock.windows:
            if table.source is not None:
                table.group.end_use(table.source, KEPT)
                table.source = None

    def extend(self, lock: Lock, end: int) -> int:
        """Allocates pages for the tokens before `end`, as far as other requests leave some.

        Returns up to which position all groups have pages, at most `end`.
        """
        for number, table in enumerate(lock.windows):
            lacking = -(-end // lock.page_size) - len(table.pages)
            if lacking > 0:
                available = table.group.available
                left = available - self._count_claimed(number, besides=lock)
                room = max(0, left, min(available, table.count_claimed()))
                end = min(end, (len(table.pages) + min(room, lacking)) * lock.page_size)
        for table in lock.windows:
            table.extend(max(0, -(-end // lock.page_size) - len(table.pages)))
        return end

    def shrink(self, lock: Lock, position: int) -> None:
        """Gives back pages that no token from `position` on sees. No step in flight reads them."""
        for table in lock.windows:
            table.release(table.group.find_first_kept(position))

    def release(self, lock: Lock, length: int | None = None) -> None:
        """Ends the use of all pages. Those before the token at `length` are kept for matches that end there;
        None: the pages' contents are wrong."""
        for table in lock.windows:
            keep_from = None if length is None else table.group.find_first_kept(length)
            table.release(len(table.pages), keep_from)

    def lease(self, lease: Lease, windows: PathWindows, length: int) -> None:
        """Leases or pins the pages that a match of `length` tokens needs."""
        needed = windows.needed(length) if self.groups else ()
        lease.windows = [page for each in needed for page in each.present]
        for page in lease.windows:
            if lease.is_breakable:
                page.group.count_lease(page, 1)
            else:
                page.group.use(page)
