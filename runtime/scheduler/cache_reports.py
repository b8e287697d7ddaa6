"""Reports on the cache, with the tiers that have the pages of evicted nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

import numpy as np

from ...radix_cache import KEY_BYTES, PrefixCache, TreeNode, TreeWalk
from ..messages import (
    CacheNode,
    CacheReport,
    CacheRoot,
    LocatePages,
    NodeTokens,
    PagesLocated,
    QueryCache,
    QueryNode,
    TopPrefix,
)
from .counts import HitCounter
from .lease_registry import LeaseRegistry
from .replies import Replies
from .request import Request
from .stored_pages import StoredPages

MAX_NAMESPACES = 100
MAX_PREFIXES = 20
MAX_NODES = 400  # nodes in one report
MAX_LOCATED = 32  # pages of one node whose tiers the page store is asked for
MAX_WAIT_S = 1.0  # maximal wait for the page store, which may be busy with a slow disk
MAX_UNANSWERED = 4  # questions to the page store; with more, reports are sent without tiers
MAX_WAITING = 256  # waiting requests whose matches one report looks up
HEAD_TOKENS = 32  # a node's first tokens in a report: more than a page, as siblings may share part of one
LEAD_TOKENS = 32  # tokens before a node that are decoded to find the message in which it begins
PREFIX_TOKENS = 128  # tokens shown at each end of a prefix
NODE_TOKENS = 4_096  # tokens shown of a node that the client asked for


@dataclass(slots=True)
class _UnsentReport:
    client: int
    report: CacheReport
    evicted: list[CacheNode]  # evicted nodes whose tiers the page store was asked for
    ends_at: float  # seconds since 1970 at which the report is sent without tiers


class CacheReports:
    """Answers questions about the contents of the cache.

    If a report has evicted nodes, the page store is asked in which tiers their pages are. The report waits
    `MAX_WAIT_S` at most for the answer, and is then sent without it.
    """

    def __init__(
        self,
        cache: PrefixCache,
        leases: LeaseRegistry,
        stored: StoredPages,
        hits: HitCounter,
        replies: Replies,
    ) -> None:
        self._cache = cache
        self._leases = leases
        self._stored = stored
        self._hits = hits
        self._replies = replies
        self._unsent: dict[int, _UnsentReport] = {}  # question to the page store -> report, oldest first
        self._last = 0
        self._to_store: list[LocatePages] = []

    def answer(self, message: QueryCache, now: float, waiting: Iterable[Request]) -> None:
        """`now` is in seconds since 1970."""
        sizes = self._cache.reports.namespaces(message.scope)
        names = sorted(sizes, key=lambda name: (name == message.own, sizes[name]), reverse=True)
        largest = names[:MAX_NAMESPACES]
        shown = largest if message.nodes else names
        prompts = _list_prompts(waiting, set(shown)) if message.nodes else []
        walk = self._cache.reports.walk(shown, prompts)
        report = self._make(message, {name: sizes[name] for name in largest}, walk)
        keys: list[bytes] = []
        if message.nodes:
            keys = _add_nodes(report, walk, message.own)
            report.is_complete = walk.is_complete and len(largest) == len(sizes)
        if any(keys) and self._stored.enabled and len(self._unsent) < MAX_UNANSWERED:
            self._ask_store(message.client, report, keys, now)
        else:
            self._replies.add(message.client, report)

    def read_node(self, message: QueryNode) -> NodeTokens:
        is_visible = message.own.startswith(message.scope)
        walk = self._cache.reports.walk([message.own] if is_visible else [])
        return NodeTokens(message.query, walk.read_edge(message.page, NODE_TOKENS))

    def take_located(self, message: PagesLocated) -> None:
        unsent = self._unsent.pop(message.question, None)
        if unsent is None:
            return  # the report was sent without tiers, or its client has died
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

    def _make(self, message: QueryCache, namespaces: dict[str, int], walk: TreeWalk) -> CacheReport:
        """Returns the report without nodes. `namespaces`: number of pages by name."""
        pages = self._cache.stats()
        return CacheReport(
            query=message.query,
            pages_total=pages.total,
            pages_free=pages.free,
            pages_used=pages.held + pages.locked,
            pages_cached=pages.evictable,
            pages_pinned=self._leases.pinned_pages(message.scope),
            pages_pinnable=self._leases.limit,
            pages_leased=self._leases.leased_pages(message.scope),
            hits=self._hits.measure(),
            recent_hits=self._hits.measure_recent(),
            evicted_pages=pages.evicted_pages,
            store=self._stored.counts,
            namespaces=namespaces,
            prefixes=[] if message.nodes else _list_prefixes(walk, message.own),
            pins=self._leases.list_pins(message.scope),
            leases=self._leases.list_leases(message.scope, message.tenant),
        )

    def _ask_store(self, client: int, report: CacheReport, keys: list[bytes], now: float) -> None:
        """Asks in which tiers nodes are. `keys`: page keys of each node, empty unless it was evicted."""
        self._last += 1
        evicted = [node for (node, _, _), names in zip(report.nodes, keys, strict=True) if names]
        self._unsent[self._last] = _UnsentReport(client, report, evicted, now + MAX_WAIT_S)
        self._to_store.append(LocatePages(self._last, [_sample(names) for names in keys if names]))


def _list_prompts(waiting: Iterable[Request], namespaces: set[str]) -> list[tuple[str | None, bytes]]:
    """The prompts of the first waiting requests, as far as they are in these namespaces."""
    requests = islice(waiting, MAX_WAITING)
    return [(each.namespace, bytes(each.tokens)) for each in requests if each.namespace in namespaces]


def _list_prefixes(walk: TreeWalk, own: str) -> list[tuple[TopPrefix, bytes, bytes]]:
    found = walk.list_top_prefixes(MAX_PREFIXES, PREFIX_TOKENS)
    shown = [(each.head, each.tail) if each.namespace == own else (b"", b"") for each in found]
    prefixes = [TopPrefix(each.namespace, each.tokens, each.hits, each.idle, None, None) for each in found]
    return [(prefix, *ends) for prefix, ends in zip(prefixes, shown, strict=True)]


def _add_nodes(report: CacheReport, walk: TreeWalk, own: str) -> list[bytes]:
    """Adds the largest branches of the tree. Returns each node's page keys, empty unless it was evicted."""
    found = walk.list_largest(MAX_NODES, HEAD_TOKENS, LEAD_TOKENS)
    for each in found:
        texts = (each.lead, each.head) if each.namespace == own else (b"", b"")
        report.nodes.append((_describe(each), *texts))
    report.roots = [
        CacheRoot(index, each.namespace, each.namespace == own)
        for index, each in enumerate(found)
        if each.parent is None
    ]
    return [each.keys for each in found]


def _describe(node: TreeNode) -> CacheNode:
    """The node without its text and its tiers, which the scheduler does not know."""
    return CacheNode(
        id=node.id,
        parent=node.parent,
        tokens=node.tokens,
        pages=node.pages,
        hits=node.hits,
        idle=node.idle,
        requests=node.requests,
        waiting=node.waiting,
        pins=node.pins,
        leases=node.leases,
        tokens_below=node.tokens_below,
        folded=node.folded,
        text=None,
        stored=None,
    )


def _sample(keys: bytes) -> bytes:
    """At most `MAX_LOCATED` of the keys, evenly spaced."""
    step = -(-len(keys) // (KEY_BYTES * MAX_LOCATED))
    return np.frombuffer(keys, f"V{KEY_BYTES}")[::step].tobytes() if step > 1 else keys
