"""Slot, locked prefix and pages for a request that starts."""

from __future__ import annotations

from ...radix_cache import Lock, PrefixCache
from .allocation import Allocation, pages_for
from .request import TOKEN_BYTES, Request


def allocate(request: Request, slot: int, cache: PrefixCache, reserve: int) -> Allocation | None:
    """Locks the matched prefix and allocates pages for the rest and one more token.

    Returns None if too few pages are available.

    reserve: pages that stay available to running requests

    The match ends at a page boundary if pages run short, because the source of a partial copy would lock one
    more page, or if the page store has more of the prompt than the tree.
    """
    fetch = request.stored.fetch
    fetched = fetch.end * cache.page_size if fetch is not None else 0
    restoring = fetched > cache.matched(request.namespace, bytes(request.tokens))
    lock = _acquire(request, cache, reserve, whole_pages=restoring)
    if lock is None:
        return None
    pages = cache.allocate(_needed_pages(request, lock, cache.page_size))
    assert pages is not None, "pages were counted before"
    allocation = Allocation(
        slot=slot,
        lock=lock,
        pages=lock.pages + pages,
        prefill_end=request.length,
        planned=lock.matched,
    )
    if restoring:
        allocation.restore_end = fetched
    allocation.saved_pages = allocation.ready // cache.page_size
    return allocation


def _acquire(request: Request, cache: PrefixCache, reserve: int, whole_pages: bool) -> Lock | None:
    """Locks the matched prefix; None if too few pages are available for the rest."""
    limit = request.most_cached
    if whole_pages:
        limit = len(cache.whole_pages(request.namespace, request.slice(0, limit))) * cache.page_size
    tokens = bytes(request.tokens)
    lock = cache.acquire(request.namespace, tokens, limit)
    if _needed_pages(request, lock, cache.page_size) + reserve <= cache.available():
        return lock
    cache.release(lock, tokens[: lock.matched * TOKEN_BYTES], lock.pages)
    return None if lock.copy is None else _acquire(request, cache, reserve, whole_pages=True)


def _needed_pages(request: Request, lock: Lock, page_size: int) -> int:
    more = 1 if request.length < request.max_length else 0
    return pages_for(request.length + more, page_size) - len(lock.pages)
