"""Where a sequence leaves the tree, compared with a search through all cached sequences."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from arbora.radix_cache import PrefixCache
from hypothesis import given
from hypothesis import strategies as st

PAGE = 4
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=24)


def packed(ids: Sequence[int]) -> bytes:
    return array("i", ids).tobytes()


def store(cache: PrefixCache, ids: Sequence[int], namespace: str = "") -> None:
    """Computes a prompt, as a request does."""
    lock = cache.acquire(cache.match(namespace, packed(ids), len(ids)))
    if lock.copy is not None:
        cache.end_copy(lock)
    assert cache.extend(lock, len(ids))
    cache.release(lock, packed(ids))


@given(stored=st.lists(TOKENS, max_size=6), prompt=TOKENS)
def test_the_match_is_that_of_a_lookup_and_other_tokens_follow_it(
    stored: list[list[int]], prompt: list[int]
) -> None:
    cache = PrefixCache(64, PAGE, check_invariants=True)
    for ids in stored:
        store(cache, ids)
    found = cache.reports.divergence("", packed(prompt), 8)
    assert found.matched == found.remembered == cache.match("", packed(prompt)).length
    behind = array("i", found.behind).tolist()
    assert len(behind) <= 8
    continued = prompt[: found.matched] + behind
    assert any(ids[: len(continued)] == continued for ids in [*stored, []]) or not behind
    if behind and found.matched < len(prompt):
        assert behind[0] != prompt[found.matched]


def test_evicted_pages_are_remembered() -> None:
    cache = PrefixCache(8, PAGE)
    store(cache, range(20))
    store(cache, range(100, 132))
    found = cache.reports.divergence("", packed(range(20)), 8)
    assert found.matched < 20
    assert found.remembered == 20


def test_other_namespaces_are_not_looked_at() -> None:
    cache = PrefixCache(8, PAGE)
    store(cache, range(20), "first")
    assert cache.reports.divergence("second", packed(range(20)), 8) == (0, 0, b"", 0)


def test_the_path_that_was_used_last_is_shown() -> None:
    cache = PrefixCache(32, PAGE)
    store(cache, [*range(8), *range(50, 58)])
    store(cache, [*range(8), *range(60, 68)])
    store(cache, [*range(8), *range(50, 58)])
    found = cache.reports.divergence("", packed([*range(8), *range(90, 98)]), 4)
    assert found == (8, 8, packed(range(50, 54)), 8)
