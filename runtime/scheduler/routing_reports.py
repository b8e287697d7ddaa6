"""Tells the tokenizer processes, if several replicas serve, what the tree has and how much work is open."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from ...radix_cache import ChangeFeed, PagesRemoved, PrefixCache
from ...radix_cache import TreeChange as CacheChange
from ..messages import Load, ReplicaReport, TreeChange
from .replies import Replies

MIN_DIFFERENCE_S = 0.005
"""A backlog that differs by less is not worth a message: routers compare seconds."""
MIN_RATIO = 1.25
"""The same for the time of a token."""


class RoutingReports:
    """Sends reports to the clients that have asked for them; without any it costs nothing."""

    def __init__(self, cache: PrefixCache, measure: Callable[[], Load], replies: Replies) -> None:
        """measure: returns the present load"""
        self._cache = cache
        self._measure = measure
        self._replies = replies
        self._watchers: dict[int, bool] = {}  # by client: whether it has got the whole tree
        self._feed: ChangeFeed | None = None
        self._sequence = 0
        self._load = Load()

    def watch(self, client: int) -> None:
        """Sends the whole tree to a client with the next report, and changes with later ones."""
        self._watchers[client] = False
        if self._feed is None:
            self._feed = self._cache.watch_changes()

    def drop_client(self, client: int) -> None:
        self._watchers.pop(client, None)
        if not self._watchers and self._feed is not None:
            self._cache.stop_changes(self._feed)
            self._feed = None

    def send(self) -> None:
        """Sends what has changed since the last call, if anything has."""
        if self._feed is None:
            return
        changes, load = [pack_change(each) for each in self._feed.take()], self._measure()
        is_new = not all(self._watchers.values())
        if not changes and not is_new and not _differ(load, self._load):
            return
        self._sequence, self._load = self._sequence + 1, load
        changed = ReplicaReport(self._sequence, load, changes)
        whole = changed
        if is_new:
            pages = [pack_change(each) for each in self._cache.list_pages()]
            whole = ReplicaReport(self._sequence, load, pages, is_whole=True)
        for client, has_whole in self._watchers.items():
            self._replies.add(client, changed if has_whole else whole)
            self._watchers[client] = True


def pack_change(change: CacheChange) -> TreeChange:
    """A change of the tree as a part of a message."""
    pages = array("i", change.pages).tobytes()
    if isinstance(change, PagesRemoved):
        return TreeChange(pages)
    return TreeChange(pages, change.tokens, change.after, change.namespace)


def _differ(load: Load, last: Load) -> bool:
    if abs(load.backlog_s - last.backlog_s) >= MIN_DIFFERENCE_S:
        return True
    if load.token_s is None or last.token_s is None:
        return load.token_s is not last.token_s
    return max(load.token_s, last.token_s) > MIN_RATIO * min(load.token_s, last.token_s)
