"""Reports on the prefix tree, with the tiers that have the pages of evicted nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import nlargest
from itertools import islice

import msgspec
import numpy as np

from ...radix_cache import KEY_BYTES, PrefixCache
from ..messages import LocatePages, PagesLocated, QueryTree, TreeNode, TreeReport
from .replies import Replies
from .request import Request

MAX_NAMESPACES = 100
MAX_NODES = 400  # nodes in one report
MAX_LOCATED = 32  # pages of one node that the page store is asked about
MAX_WAIT_S = 1.0  # a wait for the page store, which may be busy with a slow disk
MAX_UNANSWERED = 4  # questions to the page store; with more, reports are sent without tiers
MAX_WAITING = 256  # waiting requests whose matches are looked up for one report
HEAD_TOKENS = 24
NODE_TOKENS = 4_096  # tokens shown of the one node that is asked for


@dataclass(slots=True)
class _UnsentReport:
    client: int
    report: TreeReport
    evicted: list[TreeNode]  # those that the page store was asked about
    ends_at: float  # when it is sent without tiers, in seconds since 1970


class TreeReports:
    """Answers `QueryTree` with a report. If it has evicted nodes, the page store is asked in which tiers
    their pages are. The report waits `MAX_WAIT_S` at most for the answer, and is then sent without it."""

    def __init__(self, cache: PrefixCache, replies: Replies, has_store: bool) -> None:
        self._cache = cache
        self._replies = replies
        self._has_store = has_store
        self._unsent: dict[int, _UnsentReport] = {}  # by question to the page store, the oldest first
        self._last = 0
        self._to_store: list[LocatePages] = []

    def answer(self, message: QueryTree, now: float, waiting: Iterable[Request]) -> None:
        """`now` is in seconds since 1970."""
        if message.page is not None:
            self._replies.add(message.client, self._edge(message, message.page))
            return
        report, keys = self._outline(message, waiting)
        if not self._has_store or not keys or len(self._unsent) == MAX_UNANSWERED:
            self._replies.add(message.client, report)
            return
        self._last += 1
        evicted = [report.nodes[index] for index in keys]
        self._unsent[self._last] = _UnsentReport(message.client, report, evicted, now + MAX_WAIT_S)
        self._to_store.append(LocatePages(self._last, [_sample(each) for each in keys.values()]))

    def take_located(self, message: PagesLocated) -> None:
        unsent = self._unsent.pop(message.question, None)
        if unsent is None:
            return  # it was sent without tiers, or its client has died
        for node, tiers in zip(unsent.evicted, message.groups, strict=True):
            node.stored = tiers
        self._replies.add(unsent.client, unsent.report)

    def expire(self, now: float) -> None:
        """Sends the reports that have waited too long. `now` is in seconds since 1970."""
        for question, unsent in list(self._unsent.items()):
            if unsent.ends_at <= now:
                del self._unsent[question]
                self._replies.add(unsent.client, unsent.report)

    @property
    def next_expiry(self) -> float | None:
        return next((unsent.ends_at for unsent in self._unsent.values()), None)

    def drop_client(self, client: int) -> None:
        self._unsent = {number: each for number, each in self._unsent.items() if each.client != client}

    def take_messages(self) -> list[LocatePages]:
        messages, self._to_store = self._to_store, []
        return messages

    def _edge(self, message: QueryTree, page: int) -> TreeReport:
        is_visible = message.own.startswith(message.scope)
        tokens = self._cache.reports.edge(message.own, page, NODE_TOKENS) if is_visible else None
        return TreeReport(message.query, [], tokens=tokens)

    def _outline(self, message: QueryTree, waiting: Iterable[Request]) -> tuple[TreeReport, dict[int, bytes]]:
        """The report, and the page keys of its evicted nodes by their index."""
        sizes = self._cache.reports.namespaces(message.scope)
        largest = nlargest(MAX_NAMESPACES, sizes, key=lambda name: (name == message.own, sizes[name]))
        shown = set(largest)
        prompts = (
            (each.namespace, bytes(each.tokens))
            for each in islice(waiting, MAX_WAITING)
            if each.namespace in shown
        )
        found = self._cache.reports.outline(largest, MAX_NODES, HEAD_TOKENS, prompts)
        nodes = [msgspec.convert(node, TreeNode, from_attributes=True) for node in found.nodes]
        for node in nodes:
            if node.namespace != message.own:
                node.head = b""
        report = TreeReport(message.query, nodes, found.is_complete and len(largest) == len(sizes))
        return report, {index: node.keys for index, node in enumerate(found.nodes) if node.keys}


def _sample(keys: bytes) -> bytes:
    """At most `MAX_LOCATED` of the keys, evenly spaced."""
    step = -(-len(keys) // (KEY_BYTES * MAX_LOCATED))
    return np.frombuffer(keys, f"V{KEY_BYTES}")[::step].tobytes() if step > 1 else keys
