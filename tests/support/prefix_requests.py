"""Requests to a prefix cache whose pages have four tokens."""

from __future__ import annotations

from arbora.radix_cache import EvictionPolicy, Lock, PrefixCache
from prefix_world import pack

DOCUMENT = tuple(range(100, 112))  # three pages


def new_cache(num_pages: int = 32, enabled: bool = True, policy: EvictionPolicy | None = None) -> PrefixCache:
    return PrefixCache(num_pages, page_size=4, policy=policy, enabled=enabled, check_invariants=True)


def start(cache: PrefixCache, tokens: tuple[int, ...], namespace: str = "", commit: bool = True) -> Lock:
    """A request for `tokens` of which all are planned."""
    lock = cache.acquire(cache.match(namespace, pack(tokens), len(tokens) - 1))
    assert cache.extend(lock, len(tokens))
    if commit:
        cache.commit(lock, pack(tokens))
    return lock


def serve(cache: PrefixCache, tokens: tuple[int, ...], namespace: str = "") -> list[int]:
    """A request from beginning to end; returns its page table."""
    lock = start(cache, tokens, namespace)
    if lock.copy:
        cache.end_copy(lock)
    cache.release(lock, pack(tokens))
    return lock.pages


def match(cache: PrefixCache, tokens: tuple[int, ...], namespace: str = "") -> int:
    return cache.match(namespace, pack(tokens)).length
