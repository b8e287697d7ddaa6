"""Matches, and matches that end inside a page. Pages have four tokens."""

from __future__ import annotations

from arbora.radix_cache import Copy
from prefix_requests import DOCUMENT, match, new_cache, serve, start
from prefix_world import pack, take_pages

# Matching


def test_an_empty_cache_matches_nothing() -> None:
    cache = new_cache()
    lock = cache.acquire(cache.match("", pack(DOCUMENT), 11))
    assert (lock.matched, lock.pages, lock.copy) == (0, [], None)


def test_a_finished_request_is_matched_to_its_last_token() -> None:
    cache = new_cache()
    serve(cache, (*DOCUMENT, 1, 2))
    assert match(cache, (*DOCUMENT, 1, 2, 3)) == 14


def test_a_match_ends_at_the_first_token_that_differs() -> None:
    cache = new_cache()
    serve(cache, DOCUMENT)
    for length in range(len(DOCUMENT)):
        assert match(cache, (*DOCUMENT[:length], 7, 7, 7, 7, 7)) == length


def test_tokens_that_share_only_some_bytes_do_not_match() -> None:
    cache = new_cache()
    serve(cache, (0x01020304, 5))
    assert match(cache, (0x09020304, 5)) == 0


def test_the_longest_partial_match_among_siblings_is_found() -> None:
    cache = new_cache()
    for last in range(256, 266):
        serve(cache, (*DOCUMENT, 1, last, 3, 4))
    assert match(cache, (*DOCUMENT, 1, 260, 3, 9)) == 15


def test_a_match_leaves_at_least_the_tokens_beyond_the_limit_to_compute() -> None:
    cache = new_cache()
    pages = serve(cache, DOCUMENT)
    lock = cache.acquire(cache.match("", pack(DOCUMENT), 11))
    assert (lock.matched, lock.pages, lock.copy) == (11, pages[:2], Copy(pages[2], 3))


def test_namespaces_share_nothing() -> None:
    cache = new_cache()
    serve(cache, DOCUMENT, "tenant a")
    assert match(cache, DOCUMENT, "tenant b") == 0
    assert match(cache, DOCUMENT, "tenant a") == 12


def test_looking_up_leaves_no_trace() -> None:
    cache = new_cache()
    serve(cache, DOCUMENT)
    before = cache.stats()
    match(cache, DOCUMENT[:5])
    match(cache, DOCUMENT, "unheard of")
    assert cache.stats() == before


# A match that ends inside a page


def test_a_partial_page_is_copied_on_write() -> None:
    cache = new_cache()
    pages = serve(cache, DOCUMENT)
    lock = start(cache, (*DOCUMENT[:6], 7, 7, 7))
    assert lock.copy == Copy(pages[1], 2)
    assert lock.pages[0] == pages[0]
    assert lock.pages[1] not in pages


def test_a_copy_locks_its_source_until_it_is_made() -> None:
    cache = new_cache(num_pages=4)
    serve(cache, DOCUMENT)
    lock = cache.acquire(cache.match("", pack((*DOCUMENT[:6], 7)), 6))
    assert take_pages(cache, 3) is None
    cache.end_copy(lock)
    assert take_pages(cache, 3) is not None


def test_a_copy_locks_no_page_but_its_source() -> None:
    cache = new_cache(num_pages=4)
    serve(cache, (*DOCUMENT, 1, 2))
    cache.acquire(cache.match("", pack((*DOCUMENT[:6], 7)), 6))
    assert (cache.stats().locked, cache.stats().evictable) == (2, 2)


def test_an_unlocked_partial_leaf_is_adopted() -> None:
    cache = new_cache()
    pages = serve(cache, (*DOCUMENT, 1, 2))
    lock = cache.acquire(cache.match("", pack((*DOCUMENT, 1, 2, 3)), 14))
    assert (lock.matched, lock.pages, lock.copy) == (14, pages, None)


def test_an_adopted_leaf_is_out_of_reach_until_its_page_is_committed() -> None:
    cache = new_cache()
    serve(cache, (*DOCUMENT, 1, 2))
    conversation = (*DOCUMENT, 1, 2, 3, 4, 5)
    lock = start(cache, conversation, commit=False)
    assert match(cache, conversation) == 12
    cache.commit(lock, pack(conversation))
    assert match(cache, conversation) == 16


def test_undoing_an_adoption_restores_the_leaf() -> None:
    cache = new_cache()
    serve(cache, (*DOCUMENT, 1, 2))
    before = cache.stats()
    lock = cache.acquire(cache.match("", pack((*DOCUMENT, 1, 2, 3)), 14))
    cache.release(lock, pack((*DOCUMENT, 1, 2)))
    assert match(cache, (*DOCUMENT, 1, 2)) == 14
    assert cache.stats().evictable == before.evictable


def test_a_source_of_a_copy_leaves_one_page_less_than_a_match_of_whole_pages() -> None:
    cache = new_cache(num_pages=4)
    serve(cache, (*DOCUMENT, 1, 2))
    tokens = pack((*DOCUMENT, 1, 9, 9))
    found, whole = cache.match("", tokens, 14), cache.match("", tokens, 14, whole_pages=True)
    assert (cache.max_pages(found), cache.max_pages(whole)) == (3, 4)
    lock = cache.acquire(whole)
    assert len(lock.pages) + cache.available() == 4


def test_a_partial_leaf_that_matches_in_part_is_copied() -> None:
    cache = new_cache()
    pages = serve(cache, (*DOCUMENT, 1, 2))
    lock = cache.acquire(cache.match("", pack((*DOCUMENT, 1, 9, 9)), 14))
    assert lock.copy == Copy(pages[3], 1)
    assert match(cache, (*DOCUMENT, 1, 2)) == 14


def test_a_partial_leaf_that_is_being_copied_is_copied_again() -> None:
    cache = new_cache()
    pages = serve(cache, (*DOCUMENT, 1, 2))
    first = cache.acquire(cache.match("", pack((*DOCUMENT, 1, 9)), 13))
    second = cache.acquire(cache.match("", pack((*DOCUMENT, 1, 2, 3)), 14))
    assert first.copy == Copy(pages[3], 1)
    assert second.copy == Copy(pages[3], 2)


def test_a_full_page_drops_the_partial_leaf_that_it_continues() -> None:
    cache = new_cache()
    longer = start(cache, (*DOCUMENT, 1, 2, 3, 4), commit=False)
    serve(cache, (*DOCUMENT, 1, 2))
    assert cache.stats().evictable == 4
    cache.release(longer, pack((*DOCUMENT, 1, 2, 3, 4)))
    assert cache.stats().evictable == 4
    assert match(cache, (*DOCUMENT, 1, 2, 3, 4)) == 16


def test_a_partial_leaf_drops_the_shorter_one_that_it_continues() -> None:
    cache = new_cache()
    longer = start(cache, (*DOCUMENT, 1, 2, 3), commit=False)
    serve(cache, (*DOCUMENT, 1))
    cache.release(longer, pack((*DOCUMENT, 1, 2, 3)))
    assert cache.stats().evictable == 4
    assert match(cache, (*DOCUMENT, 1, 2, 3)) == 15


def test_a_covered_partial_leaf_that_is_being_copied_is_dropped_after_the_copy() -> None:
    cache = new_cache()
    longer = start(cache, (*DOCUMENT, 1, 2, 3), commit=False)
    serve(cache, (*DOCUMENT, 1, 2))
    copying = cache.acquire(cache.match("", pack((*DOCUMENT, 1, 9, 9)), 14))
    cache.release(longer, pack((*DOCUMENT, 1, 2, 3)))
    assert cache.stats().locked == 4
    cache.end_copy(copying)
    assert (cache.stats().locked, cache.stats().evictable) == (3, 1)


def test_a_partial_page_that_the_tree_covers_is_freed() -> None:
    cache = new_cache()
    shorter = start(cache, (*DOCUMENT, 1), commit=False)
    serve(cache, (*DOCUMENT, 1, 2, 3))
    cache.release(shorter, pack((*DOCUMENT, 1)))
    assert (cache.stats().free, cache.stats().evictable) == (28, 4)


def test_a_release_before_the_copy_was_made_keeps_nothing_of_it() -> None:
    cache = new_cache()
    serve(cache, DOCUMENT)
    lock = start(cache, (*DOCUMENT[:6], 7, 7), commit=False)
    cache.release(lock, pack(DOCUMENT[:6]))
    assert match(cache, (*DOCUMENT[:6], 7)) == 6
    assert cache.stats().evictable == 3
    assert cache.stats().free == 29
