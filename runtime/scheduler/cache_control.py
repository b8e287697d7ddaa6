"""Answers the messages that concern the whole cache: reports, pins, leases, drops, but not the tree."""

from __future__ import annotations

from heapq import nlargest
from typing import assert_never

from ...radix_cache import Prefix, PrefixCache
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
    StoreCounts,
    UnpinPrefix,
)
from .hit_rate import HitRate
from .lease_registry import LeaseRegistry
from .pin_registry import PinRegistry

MOST_NAMESPACES = 100
MOST_PREFIXES = 20
SHOWN_TOKENS = 128  # at each end of a prefix


class CacheController:
    def __init__(self, cache: PrefixCache, most_pinned: int) -> None:
        """most_pinned: pages that pins and leases may protect in a scope"""
        self.hits = HitRate()
        self.pins = PinRegistry(cache, most_pinned)
        self.leases = LeaseRegistry(cache, most_pinned, self.pins.pages)
        self._cache = cache

    def answer(
        self,
        message: QueryCache | CheckPin | PinPrefix | UnpinPrefix,
        now: float,
        most_needed: int,
        store: StoreCounts,
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

    def _report(self, message: QueryCache, store: StoreCounts) -> CacheReport:
        pages = self._cache.stats()
        total, lately = self.hits.total, self.hits.lately
        sizes = self._cache.views.namespaces(message.scope)
        largest = nlargest(MOST_NAMESPACES, sizes, key=sizes.__getitem__)
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
            prefixes=self._popular(message, list(sizes)),
            pins=self.pins.listed(message.scope),
            leases=self.leases.listed(message.scope, message.tenant),
            pages_leased=self.leases.pages(message.scope),
        )

    def _popular(self, message: QueryCache, names: list[str]) -> list[CachedPrefix]:
        found = self._cache.views.popular(names, MOST_PREFIXES, SHOWN_TOKENS)
        return [_cached_prefix(prefix, is_shown=prefix.namespace == message.own) for prefix in found]

    def drop(self, message: DropCache) -> CacheDropped:
        of_scope = self._cache.views.namespaces(message.scope)
        names = [*of_scope] if message.namespace is None else [message.namespace]
        dropped = [self._cache.drop(name) for name in names]
        return CacheDropped(
            message.query, sum(each.pages for each in dropped), sum(each.tokens for each in dropped)
        )

    def explain(self, message: ExplainPrompt) -> PromptExplained:
        found = self._cache.views.divergence(message.namespace, message.tokens, SHOWN_TOKENS)
        return PromptExplained(message.query, *found)

    def _unpin(self, message: UnpinPrefix) -> PrefixPinned | QueryRefused:
        ended = self.pins.unpin(message.pin, message.scope)
        if ended is not None:
            return PrefixPinned(message.query, ended)
        reason = f"There is no pin {message.pin}; it may have expired."
        return QueryRefused(message.query, 404, reason, "id", "pin_not_found")


def _cached_prefix(prefix: Prefix, *, is_shown: bool) -> CachedPrefix:
    head, tail = (prefix.head, prefix.tail) if is_shown else (b"", b"")
    return CachedPrefix(prefix.namespace, head, tail, prefix.tokens, prefix.hits, prefix.idle)
