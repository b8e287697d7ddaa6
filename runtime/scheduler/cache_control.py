"""Answers the messages that concern the whole cache: reports, pins, leases, drops."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest
from itertools import islice
from typing import assert_never

from ...radix_cache import OutlinedNode, Prefix, PrefixCache
from ..messages import (
    CacheAnswer,
    CachedPrefix,
    CacheDropped,
    CacheReport,
    CheckPin,
    DropCache,
    ExplainPrompt,
    PinPrefix,
    PrefixPinned,
    PromptExplained,
    QueryCache,
    QueryRefused,
    QueryTree,
    StoreCounts,
    TreeNode,
    TreeReport,
    UnpinPrefix,
)
from .hit_rate import HitRate
from .lease_registry import LeaseRegistry
from .pin_registry import PinRegistry
from .request import Request

MOST_NAMESPACES = 100
MOST_PREFIXES = 20
SHOWN_TOKENS = 128  # at each end of a prefix
MOST_NODES = 400  # of the tree, in one report
MOST_WAITING = 256  # requests whose matches are looked up for one report
NODE_HEAD_TOKENS = 24
NODE_TOKENS = 4_096  # of the one node whose tokens are asked for


class CacheController:
    def __init__(self, cache: PrefixCache, most_pinned: int) -> None:
        """most_pinned: pages that pins and leases may protect in a scope"""
        self.hits = HitRate()
        self.pins = PinRegistry(cache, most_pinned)
        self.leases = LeaseRegistry(cache, most_pinned, self.pins.pages)
        self._cache = cache

    def answer(
        self,
        message: QueryCache | CheckPin | PinPrefix | UnpinPrefix | ExplainPrompt | QueryTree,
        now: float,
        most_needed: int,
        store: StoreCounts,
        waiting: Iterable[Request],
    ) -> CacheAnswer:
        """`now` is in seconds since 1970; `most_needed` are the pages of the largest open request."""
        match message:
            case QueryCache():
                return self._report(message, store)
            case CheckPin():
                return self.pins.check(message)
            case PinPrefix():
                answer = self.pins.pin(message, now, self._cache.stats().total - most_needed)
                self.leases.enforce_quota(message.scope)
                return answer
            case UnpinPrefix():
                return self._unpin(message)
            case ExplainPrompt(_, query, namespace, tokens):
                return PromptExplained(query, *self._cache.views.divergence(namespace, tokens, SHOWN_TOKENS))
            case QueryTree():
                return self._outline(message, waiting)
            case _:
                assert_never(message)

    def expire(self, now: float) -> None:
        self.pins.expire(now)
        self.leases.expire(now)

    @property
    def next_expiry(self) -> float | None:
        """When the next pin or lease ends, in seconds since 1970."""
        ends = [self.pins.next_expiry, self.leases.next_expiry]
        return min((end for end in ends if end is not None), default=None)

    def _names(self, scope: str) -> list[str]:
        return [name for name in self._cache.views.namespaces() if name.startswith(scope)]

    def _report(self, message: QueryCache, store: StoreCounts) -> CacheReport:
        pages = self._cache.stats()
        total, lately = self.hits.total, self.hits.lately
        sizes = self._cache.views.namespaces()
        largest = nlargest(MOST_NAMESPACES, self._names(message.scope), key=sizes.__getitem__)
        return CacheReport(
            query=message.query,
            pages_total=pages.total,
            pages_free=pages.free,
            pages_used=pages.held + pages.locked,
            pages_cached=pages.evictable,
            pages_pinned=self.pins.pages(message.scope),
            pages_pinnable=self.pins.limit,
            prompt_tokens=total.prompt_tokens,
            cached_tokens=total.cached_tokens,
            recent_requests=len(self.hits.recent),
            recent_prompt_tokens=lately.prompt_tokens,
            recent_cached_tokens=lately.cached_tokens,
            evicted_pages=pages.evicted_pages,
            store=store,
            namespaces={name: sizes[name] for name in largest},
            prefixes=self._popular(message),
            pins=self.pins.listed(message.scope),
            leases=self.leases.listed(message.scope, message.tenant),
            pages_leased=self.leases.pages(message.scope),
        )

    def _popular(self, message: QueryCache) -> list[CachedPrefix]:
        found = self._cache.views.popular(self._names(message.scope), MOST_PREFIXES, SHOWN_TOKENS)
        return [_cached_prefix(prefix, is_shown=prefix.namespace == message.own) for prefix in found]

    def _outline(self, message: QueryTree, waiting: Iterable[Request]) -> TreeReport:
        if message.page is not None:
            is_visible = message.own.startswith(message.scope)
            tokens = self._cache.views.edge(message.own, message.page, NODE_TOKENS) if is_visible else None
            return TreeReport(message.query, [], tokens=tokens)
        names, sizes = self._names(message.scope), self._cache.views.namespaces()
        largest = nlargest(MOST_NAMESPACES, names, key=lambda name: (name == message.own, sizes[name]))
        shown = set(largest)
        prompts = (
            (each.namespace, bytes(each.tokens))
            for each in islice(waiting, MOST_WAITING)
            if each.namespace in shown
        )
        found = self._cache.views.outline(largest, MOST_NODES, NODE_HEAD_TOKENS, prompts)
        nodes = [_tree_node(node, is_shown=node.namespace == message.own) for node in found.nodes]
        return TreeReport(message.query, nodes, found.is_complete and len(largest) == len(names))

    def drop(self, message: DropCache) -> CacheDropped:
        names = self._names(message.scope) if message.namespace is None else [message.namespace]
        dropped = [self._cache.drop(name) for name in names]
        return CacheDropped(
            message.query, sum(each.pages for each in dropped), sum(each.tokens for each in dropped)
        )

    def _unpin(self, message: UnpinPrefix) -> PrefixPinned | QueryRefused:
        ended = self.pins.unpin(message.pin, message.scope)
        if ended is not None:
            return PrefixPinned(message.query, ended)
        reason = f"There is no pin {message.pin}; it may have expired."
        return QueryRefused(message.query, 404, reason, "id", "pin_not_found")


def _cached_prefix(prefix: Prefix, *, is_shown: bool) -> CachedPrefix:
    head, tail = (prefix.head, prefix.tail) if is_shown else (b"", b"")
    return CachedPrefix(prefix.namespace, head, tail, prefix.tokens, prefix.hits, prefix.idle)


def _tree_node(node: OutlinedNode, *, is_shown: bool) -> TreeNode:
    return TreeNode(
        page=node.page,
        parent=node.parent,
        namespace=node.namespace,
        head=node.head if is_shown else b"",
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
    )
