"""A branch of the tree may be deeper than Python's stack."""

from __future__ import annotations

import inspect
import sys
from array import array
from collections.abc import Iterator

import pytest
from arbora.radix_cache import PrefixCache
from prefix_world import take_pages

DEPTH = 400


@pytest.fixture(autouse=True)
def short_stack() -> Iterator[None]:
    """Pages for a quarter of the tree's depth."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack()) + DEPTH // 4)
    yield
    sys.setrecursionlimit(limit)


def deep_cache() -> tuple[PrefixCache, bytes]:
    """A conversation in which each request extended the last one by one page of one token."""
    cache = PrefixCache(DEPTH, page_size=1, model=b"model")
    tokens = array("i", range(1, DEPTH + 1)).tobytes()
    for length in range(1, DEPTH + 1):
        prompt = tokens[: 4 * length]
        lock = cache.acquire(cache.match("", prompt, length))
        assert cache.extend(lock, length)
        cache.release(lock, prompt, generated=1)
    return cache, tokens


def test_a_deep_branch_is_matched_listed_and_evicted() -> None:
    cache, tokens = deep_cache()
    assert cache.match("", tokens).length == DEPTH
    assert cache.keys is not None
    assert sum(len(part.pages) for part in cache.keys.list_pages()) == DEPTH
    assert cache.reports.walk([""]).list_top_prefixes(most=5, shown_tokens=3)
    held = take_pages(cache, DEPTH // 2)
    assert held is not None and len(held) == DEPTH // 2
    assert cache.match("", tokens).length == DEPTH - DEPTH // 2
    assert sum(len(part.pages) for part in cache.keys.take_evicted()) == DEPTH // 2
    assert cache.drop("").pages == DEPTH - DEPTH // 2


def test_a_pin_keeps_a_deep_branch() -> None:
    cache, tokens = deep_cache()
    pin = cache.lease("me", "", tokens, 1.0, DEPTH, is_breakable=False)
    assert pin is not None and cache.available() == 0
    cache.end_lease(pin)
    assert cache.available() == DEPTH
