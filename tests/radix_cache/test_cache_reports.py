"""Where a sequence leaves the tree, and how many branches share its places, compared with searches through
all cached sequences."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest
from arbora.radix_cache import PrefixCache, prompt_path
from arbora.radix_cache.node import Node
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


# The path of a sequence


@given(stored=st.lists(TOKENS, max_size=6), prompt=TOKENS)
def test_branches_are_counted_at_each_place_as_in_the_list_of_leaves(
    stored: list[list[int]], prompt: list[int]
) -> None:
    cache = PrefixCache(64, PAGE, check_invariants=True)
    for ids in [*stored, prompt]:
        store(cache, ids)
    ends = range(1, len(prompt) + 1)
    nodes, others = cache.reports.path("", packed(prompt), ends)
    kept = [array("i", leaf.sequence()).tolist() for leaf in list_leaves(cache)]
    for end, counted in zip(ends, others, strict=True):
        through = sum(ids[:end] == prompt[:end] for ids in kept)
        assert counted in (through, through - 1)  # one of them may be the prompt's own
        if prompt in kept:
            assert counted == through - 1
    assert sum(node.tokens for node in nodes) >= len(prompt)


def list_leaves(cache: PrefixCache) -> list[Node]:
    return [node for node in cache._tree.roots[""].subtree() if not node.children]


def test_a_prompt_that_goes_on_after_a_shared_place_has_one_branch_less_there() -> None:
    cache = PrefixCache(32, PAGE)
    for last in (50, 60, 70):
        store(cache, [*range(10), *range(last, last + 8)])
    prompt = packed([*range(10), *range(50, 58), 9, 9])
    nodes, others = cache.reports.path("", prompt, [4, 10, 11, 18, 20])
    assert others == [2, 2, 0, 0, 0]
    assert [node.tokens for node in nodes] == [8, 4, 6]
    assert None not in [node.id for node in nodes]


def test_evicted_nodes_are_on_the_path_without_an_id() -> None:
    cache = PrefixCache(8, PAGE)
    store(cache, range(20))
    store(cache, range(100, 132))
    nodes, others = cache.reports.path("", packed(range(20)), [4, 20])
    assert (nodes[-1].id, sum(node.tokens for node in nodes), others[-1]) == (None, 20, 0)


def test_counting_branches_visits_few_nodes_of_a_wide_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = PrefixCache(256, PAGE)
    for last in range(60):
        store(cache, [*range(8), last, *range(11)])
    prompt = packed([*range(8), 5, *range(11)])
    assert cache.reports.path("", prompt, [8, 12])[1] == [59, 0]
    monkeypatch.setattr(prompt_path, "MAX_COUNTED", 20)
    assert 10 < cache.reports.path("", prompt, [8, 12])[1][0] < 20
