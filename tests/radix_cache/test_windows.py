"""Pages of layers that see only the latest tokens: what is kept, what a match needs, and what is evicted."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from arbora.radix_cache import Lock, PrefixCache, Reach
from prefix_world import pack

PAGE = 4
WINDOW = 16  # with a margin of two tokens
DOCUMENT = tuple(range(100, 160))


def new_cache(pages: int = 40, *reaches: Reach) -> PrefixCache:
    windows = [(reach, pages) for reach in reaches or (Reach(WINDOW),)]
    return PrefixCache(200, PAGE, check_invariants=True, windows=windows)


def compute(cache: PrefixCache, tokens: tuple[int, ...], prompt: int | None = None) -> Lock:
    """Starts a request and computes all of its tokens, in chunks that free what is behind the window."""
    lock = cache.acquire(cache.match("", pack(tokens), len(tokens) - 1), prompt or len(tokens))
    assert cache.extend(lock, len(tokens))
    for start in range(lock.matched, len(tokens), 2 * PAGE):
        end = min(start + 2 * PAGE, len(tokens))
        assert cache.extend_windows(lock, end) == end
        if lock.source is not None:
            cache.end_copy(lock)
        cache.commit(lock, pack(tokens[: min(end, prompt or end)]))
        cache.shrink(lock, end)
    return lock


def serve(cache: PrefixCache, tokens: tuple[int, ...], prompt: int | None = None) -> int:
    """Serves a request of which `prompt` tokens are its prompt; returns how many tokens were cached."""
    lock = compute(cache, tokens, prompt)
    cache.release(lock, pack(tokens))
    return lock.matched


def evict(cache: PrefixCache, count: int) -> None:
    """Evicts `count` windowed pages: takes them, and the free ones, and frees them again."""
    group = cache.windows[0]
    for page in group.take(group.allocator.num_free + count, None):
        group.end_use(page, 0)


def match(cache: PrefixCache, tokens: Iterable[int]) -> int:
    return cache.match("", pack(tokens)).length


def count_cached(cache: PrefixCache) -> int:
    return len(cache.windows[0].idle)


def test_a_running_request_holds_its_window_and_no_page_behind_it() -> None:
    lock = compute(new_cache(), DOCUMENT)
    assert [index for index, page in enumerate(lock.windows[0].pages) if page] == [10, 11, 12, 13, 14]
    assert lock.windows[0].list_ids()[:10] == [0] * 10
    assert len(lock.pages) == len(DOCUMENT) // PAGE


def test_the_next_turn_of_a_chat_finds_all_of_it_after_all_pages_far_behind_its_end_are_evicted() -> None:
    cache = new_cache()
    serve(cache, DOCUMENT)
    assert count_cached(cache) == 15
    evict(cache, 10)
    assert match(cache, (*DOCUMENT, 1)) == len(DOCUMENT)
    evict(cache, 1)
    assert match(cache, (*DOCUMENT, 1)) < len(DOCUMENT)


def test_the_end_of_a_prompt_is_kept_too() -> None:
    cache = new_cache()
    serve(cache, DOCUMENT, prompt=24)
    evict(cache, count_cached(cache) - 10)  # five pages of each end
    assert match(cache, (*DOCUMENT[:24], 1)) == 24
    assert match(cache, DOCUMENT) == len(DOCUMENT)


def test_a_match_ends_before_the_first_page_that_is_lost() -> None:
    cache = new_cache()
    serve(cache, DOCUMENT[:30])
    serve(cache, DOCUMENT)
    evict(cache, count_cached(cache) - 11)
    assert match(cache, (*DOCUMENT[:50], 1)) == 32
    assert cache.reports.divergence("", pack((*DOCUMENT[:50], 1)), 4)[:2] == (32, 50)


def test_every_length_that_all_groups_serve_is_known() -> None:
    cache = new_cache(40, Reach(WINDOW), Reach(8, in_chunks=True))
    serve(cache, DOCUMENT)
    for group in cache.windows:
        group.take(group.allocator.num_free + 8, None)
    path = cache.path_windows(cache._tree.find("", pack(DOCUMENT)))
    served = [length for length in range(len(DOCUMENT) + 1) if path.longest(length) == length]
    assert served[-1] == len(DOCUMENT)
    assert all(path.longest(limit) == max(n for n in served if n <= limit) for limit in range(len(DOCUMENT)))


def test_the_place_where_a_prompt_left_the_tree_is_kept_for_the_prompts_after_it() -> None:
    cache = new_cache(60)
    serve(cache, DOCUMENT)
    serve(cache, (*DOCUMENT[:38], 1, 2, 3))
    evict(cache, count_cached(cache) - 12)
    assert match(cache, (*DOCUMENT[:38], 4)) == 38


def test_pages_that_are_computed_again_serve_later_matches() -> None:
    cache = new_cache()
    serve(cache, DOCUMENT)
    evict(cache, count_cached(cache))
    assert serve(cache, (*DOCUMENT, 1)) == 0
    assert match(cache, (*DOCUMENT, 1)) == len(DOCUMENT) + 1
    assert cache.stats().held == 0


def test_leased_pages_are_evicted_last_and_pinned_ones_not_at_all() -> None:
    cache = new_cache()
    serve(cache, DOCUMENT)
    lease = cache.lease("", "", pack(DOCUMENT), 9.0, 100)
    other = tuple(range(500, 560))
    serve(cache, other)
    assert lease is not None
    evict(cache, count_cached(cache) - 4)
    assert (match(cache, DOCUMENT), match(cache, other)) == (len(DOCUMENT), 0)
    pin = cache.lease("", "", pack(DOCUMENT), 9.0, 100, is_breakable=False)
    assert pin is not None and cache.windows[0].available == 36
    cache.end_lease(pin)
    cache.end_lease(lease)
    assert cache.windows[0].available == 40


def test_a_partial_page_is_copied_in_every_group() -> None:
    cache = new_cache(40, Reach(WINDOW), Reach(8, in_chunks=True))
    serve(cache, DOCUMENT[:30])
    lock = cache.acquire(cache.match("", pack((*DOCUMENT[:29], 1))), 40)
    cache.extend(lock, 40)
    assert cache.extend_windows(lock, 32) == 32
    assert [target for _, target in lock.list_copies()] == [
        lock.copy_target,
        *(table.pages[7].id for table in lock.windows if table.pages[7]),
    ]
    sources = [table.source for table in lock.windows]
    assert all(page is not None and page.users == 1 for page in sources)
    cache.end_copy(lock)
    assert all(page is not None and page.users == 0 for page in sources)


def test_a_prompt_starts_with_pages_for_its_window_and_leaves_others_what_theirs_still_need() -> None:
    cache = new_cache(30)  # a prompt may need 14 pages at once: the window, the margin and two chunks
    found = cache.match("", pack(DOCUMENT))
    assert cache.windows[0].max_held(1000) == 14
    assert cache.has_room(found, 60, 16) and not cache.has_room(found, 60, 17)
    lock = cache.acquire(found, 60)
    cache.extend(lock, 60)
    other = cache.acquire(cache.match("", pack((1, 2, 3))), 60)
    assert cache.extend_windows(lock, 60) == 60
    assert cache.extend_windows(other, 60) == 60
    assert not cache.has_room(found, 60, 0)


def test_a_long_prompt_gets_pages_for_as_many_tokens_as_there_are() -> None:
    cache = new_cache(20)
    lock = cache.acquire(cache.match("", b""), 400)
    assert cache.extend_windows(lock, 400) == 80
    cache.shrink(lock, 80)
    assert cache.extend_windows(lock, 400) == 140


@pytest.mark.parametrize(
    ("reach", "position", "first"), [(Reach(4), 9, 6), (Reach(4), 2, 0), (Reach(4, True), 9, 8)]
)
def test_a_token_sees_its_window_or_its_chunk(reach: Reach, position: int, first: int) -> None:
    assert reach.find_first(position) == first


def test_a_group_without_room_is_named() -> None:
    cache = new_cache(13)
    full = cache.find_full_window(1000)
    assert full is not None and (full.reach, full.needed, full.total, full.pinned) == (
        Reach(WINDOW),
        14,
        13,
        0,
    )
    assert cache.find_full_window(40) is None
