"""How pages enter and leave the prefix cache, and how they are counted. Pages have four tokens."""

from __future__ import annotations

import pytest
from arbora.radix_cache import PrefixCache
from arbora.radix_cache.node import Node
from least_recently_used import LeastRecentlyUsed
from prefix_requests import DOCUMENT, match, new_cache, serve, start
from prefix_world import pack, take_pages

# Committing and releasing


def test_committed_pages_are_matched_while_their_request_runs() -> None:
    cache = new_cache()
    first = start(cache, (*DOCUMENT, 1, 2))
    assert match(cache, (*DOCUMENT, 1, 2)) == 12
    other = cache.acquire(cache.match("", pack((*DOCUMENT, 9)), 12))
    assert other.pages == first.pages[:3]


def test_a_request_keeps_its_copy_of_a_page_that_the_tree_has() -> None:
    cache = new_cache()
    first = start(cache, DOCUMENT, commit=False)
    second = start(cache, DOCUMENT, commit=False)
    cache.commit(first, pack(DOCUMENT))
    cache.commit(second, pack(DOCUMENT))
    assert (cache.stats().locked, cache.stats().held) == (3, 3)
    cache.release(second, pack(DOCUMENT))
    assert (cache.stats().locked, cache.stats().held) == (3, 0)
    assert cache.acquire(cache.match("", pack((*DOCUMENT, 1)), 12)).pages == first.pages


def test_pages_past_the_last_computed_token_are_freed() -> None:
    cache = new_cache()
    lock = start(cache, (*DOCUMENT, *DOCUMENT), commit=False)
    cache.release(lock, pack(DOCUMENT[:5]))
    assert cache.stats().evictable == 2
    assert cache.stats().free == 30


def test_a_release_keeps_all_committed_tokens() -> None:
    cache = new_cache()
    lock = start(cache, DOCUMENT)
    cache.release(lock, b"")
    assert match(cache, DOCUMENT) == 12


def test_a_sequence_computed_in_chunks_is_one_node() -> None:
    cache = new_cache()
    lock = start(cache, DOCUMENT, commit=False)
    for end in (5, 8, 12):
        cache.commit(lock, pack(DOCUMENT[:end]))
    cache.release(lock, pack(DOCUMENT))
    [root] = cache._tree.roots.values()
    [node] = root.children.values()
    assert list(node.pages) == lock.pages


def test_a_partial_last_page_belongs_to_its_node_until_a_request_extends_it() -> None:
    cache = new_cache()
    pages = serve(cache, DOCUMENT[:10])
    [root] = cache._tree.roots.values()
    [node] = root.children.values()
    assert (list(node.pages), node.tokens) == (pages, pack(DOCUMENT[:10]))
    lock = cache.acquire(cache.match("", pack(DOCUMENT), 11))
    assert (lock.pages, lock.copy) == (pages, None)
    [whole] = root.children.values()
    assert (whole.pages, whole.children) == (tuple(pages[:2]), {})


def test_the_last_page_goes_first_and_the_rest_of_its_node_stays() -> None:
    cache = new_cache(num_pages=3)
    pages = serve(cache, DOCUMENT[:10])
    assert take_pages(cache, 1) == pages[2:]
    assert match(cache, DOCUMENT) == 8


def test_sequences_split_at_the_last_page_boundary_before_they_differ() -> None:
    cache = new_cache()
    other = (*DOCUMENT[:9], 7, 7, 7)
    lock = start(cache, other, commit=False)
    serve(cache, (*DOCUMENT, 1, 1, 1, 1))
    cache.release(lock, pack(other))
    [root] = cache._tree.roots.values()
    [shared] = root.children.values()
    assert len(shared.pages) == 2
    assert sorted(len(child.pages) for child in shared.children.values()) == [1, 2]
    assert (match(cache, other), match(cache, DOCUMENT)) == (12, 12)


def test_a_request_keeps_its_lock_when_another_splits_its_node() -> None:
    cache = new_cache(num_pages=5)
    first = start(cache, DOCUMENT)
    second = start(cache, (*DOCUMENT[:4], 7, 7))
    cache.release(second, pack(DOCUMENT[:4]))
    assert cache.stats().locked == 3
    cache.release(first, pack(DOCUMENT))
    assert cache.stats().locked == 0


def test_a_node_that_another_request_uses_does_not_grow() -> None:
    cache = new_cache(num_pages=8)
    first = start(cache, DOCUMENT)
    second = cache.acquire(cache.match("", pack((*DOCUMENT, 9)), 12))
    assert cache.extend(first, 16)
    cache.release(first, pack((*DOCUMENT, 1, 1, 1, 1)))
    assert (cache.stats().locked, cache.stats().evictable) == (3, 1)
    cache.release(second, pack(DOCUMENT))
    assert cache.stats().locked == 0


def test_a_namespace_without_pages_is_forgotten() -> None:
    cache = new_cache()
    serve(cache, DOCUMENT, "salt")
    evicting = cache.acquire(cache.match(None, b""))
    assert cache.extend(evicting, 32 * 4)
    cache.release(evicting, b"")
    lock = cache.acquire(cache.match("another", b"", 0))
    cache.release(lock, b"")
    assert not cache._tree.roots


def test_committing_pages_that_no_request_holds_is_a_bug_of_the_caller() -> None:
    cache = new_cache()
    lock = cache.acquire(cache.match("", pack(DOCUMENT), 11))
    lock.pages += [0, 1, 2]
    with pytest.raises(AssertionError, match="each page has exactly one owner"):
        cache.commit(lock, pack(DOCUMENT))


def test_a_page_table_that_is_too_short_is_a_bug_of_the_caller() -> None:
    cache = new_cache()
    lock = start(cache, DOCUMENT[:8], commit=False)
    with pytest.raises(AssertionError, match="3 full pages of tokens, a page table of 2"):
        cache.commit(lock, pack(DOCUMENT))


def test_releasing_twice_is_a_bug_of_the_caller() -> None:
    cache = new_cache()
    lock = start(cache, DOCUMENT)
    cache.release(lock, pack(DOCUMENT))
    with pytest.raises(AssertionError, match="the lock has ended"):
        cache.release(lock, pack(DOCUMENT))


def test_tokens_that_change_after_commit_are_noticed() -> None:
    cache = new_cache()
    lock = start(cache, DOCUMENT)
    with pytest.raises(AssertionError, match="differ from those committed"):
        cache.release(lock, pack(DOCUMENT[::-1]))


# Allocating and evicting


def test_free_pages_are_used_before_any_is_evicted() -> None:
    cache = new_cache(num_pages=8)
    serve(cache, DOCUMENT)
    assert take_pages(cache, 5) is not None
    assert match(cache, DOCUMENT) == 12


def test_only_as_many_pages_are_evicted_as_are_needed_from_the_tail() -> None:
    cache = new_cache(num_pages=4)
    pages = serve(cache, (*DOCUMENT, 1))
    assert take_pages(cache, 1) == [pages[3]]
    assert take_pages(cache, 1) == [pages[2]]
    assert match(cache, DOCUMENT) == 8


def test_the_least_recently_used_branch_goes_first() -> None:
    cache = new_cache(num_pages=9, policy=LeastRecentlyUsed())
    a, b, c = (tuple(range(base, base + 12)) for base in (0, 100, 200))
    for tokens in (a, b, c):
        serve(cache, tokens)
    lock = cache.acquire(cache.match("", pack(a), 12))
    cache.release(lock, pack(a))
    take_pages(cache, 3)
    assert [match(cache, tokens) for tokens in (a, b, c)] == [12, 0, 12]
    take_pages(cache, 3)
    assert [match(cache, tokens) for tokens in (a, c)] == [12, 0]


def test_a_shared_prefix_outlives_the_branches_below_it() -> None:
    cache = new_cache(num_pages=6)
    serve(cache, (*DOCUMENT, 1, 1, 1, 1))
    serve(cache, (*DOCUMENT, 2, 2, 2, 2))
    take_pages(cache, 3)
    assert match(cache, DOCUMENT) == 12
    take_pages(cache, 1)
    assert match(cache, DOCUMENT) == 8


def test_locked_nodes_are_not_evicted() -> None:
    cache = new_cache(num_pages=6)
    serve(cache, (*DOCUMENT, 1, 1, 1, 1))
    lock = cache.acquire(cache.match("", pack((*DOCUMENT, 9)), 12))
    assert cache.available() == 3
    assert take_pages(cache, 4) is None
    assert take_pages(cache, 3) is not None
    cache.release(lock, pack(DOCUMENT))
    assert cache.available() == 3


def test_an_allocation_that_cannot_succeed_evicts_nothing() -> None:
    cache = new_cache(num_pages=4)
    serve(cache, DOCUMENT)
    assert take_pages(cache, 5) is None
    assert match(cache, DOCUMENT) == 12


def test_a_request_gets_the_pages_next_to_its_own() -> None:
    cache = new_cache()
    first, neighbour = (cache.acquire(cache.match("", b"")) for _ in range(2))
    assert cache.extend(first, 8) and cache.extend(neighbour, 4)
    assert (first.pages, neighbour.pages) == ([0, 1], [2])
    take_pages(cache, 2)
    cache.release(neighbour, b"")
    assert cache.extend(first, 12) and first.pages == [0, 1, 2]


class LastAddedFirst(LeastRecentlyUsed):
    def add(self, leaf: Node) -> None:
        leaf.last_use = -leaf.last_use
        super().add(leaf)


def test_another_policy_changes_the_order_of_eviction() -> None:
    cache = PrefixCache(8, 4, policy=LastAddedFirst())
    serve(cache, (1, 2, 3, 4))
    serve(cache, DOCUMENT)
    take_pages(cache, 6)
    assert match(cache, DOCUMENT) == 4
    assert match(cache, (1, 2, 3, 4)) == 4


# Without a cache


def test_a_disabled_cache_neither_matches_nor_keeps() -> None:
    cache = new_cache(enabled=False)
    lock = start(cache, (*DOCUMENT, 1))
    assert match(cache, DOCUMENT) == 0
    cache.release(lock, pack((*DOCUMENT, 1)))
    assert cache.stats().free == 32


# Statistics


def test_statistics_count_each_page_once() -> None:
    cache = new_cache()
    serve(cache, DOCUMENT)
    start(cache, (*DOCUMENT[:8], 1, 1, 1, 1, 1))
    stats = cache.stats()
    assert (stats.free, stats.held, stats.evictable, stats.locked) == (27, 1, 1, 3)


# Discarding


def test_a_discard_removes_the_nodes_and_their_ancestors() -> None:
    cache = new_cache()
    serve(cache, DOCUMENT[:8])
    lock = start(cache, (*DOCUMENT, 1, 2))
    cache.discard(lock)
    assert match(cache, DOCUMENT) == 0
    assert cache.stats().free == 32


def test_a_discard_keeps_nodes_that_others_lock_or_extend() -> None:
    cache = new_cache()
    serve(cache, (*DOCUMENT[:4], 1, 2, 3, 4, 5, 6))
    lock = start(cache, DOCUMENT)
    other = start(cache, (*DOCUMENT[:8], 9, 9, 9, 9))
    cache.discard(lock)
    assert match(cache, DOCUMENT) == 8
    cache.discard(other)
    assert match(cache, DOCUMENT) == 4


def test_a_discard_frees_the_requests_copies_of_pages_in_the_tree() -> None:
    cache = new_cache()
    first = start(cache, DOCUMENT, commit=False)
    second = start(cache, DOCUMENT)
    cache.commit(first, pack(DOCUMENT))
    cache.discard(first)
    cache.release(second, pack(DOCUMENT))
    assert cache.stats().held == 0
    assert match(cache, DOCUMENT) == len(DOCUMENT)


def test_a_discard_unlocks_the_page_that_would_have_been_copied() -> None:
    cache = new_cache()
    serve(cache, DOCUMENT)
    lock = start(cache, (*DOCUMENT[:6], 7, 7, 7))
    assert lock.copy is not None
    cache.discard(lock)
    assert cache.stats().locked == 0


def test_a_cache_that_keeps_nothing_has_nothing_to_discard() -> None:
    cache = new_cache(enabled=False)
    lock = start(cache, DOCUMENT)
    cache.discard(lock)
    assert cache.stats().free == 32
