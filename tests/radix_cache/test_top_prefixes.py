"""The most useful prefixes of a cache. Pages have four tokens."""

from __future__ import annotations

from arbora.radix_cache import CachedPrefix, PrefixCache, cache_reports
from prefix_requests import DOCUMENT, new_cache, serve, start
from prefix_world import pack, take_pages
from pytest import MonkeyPatch


def found(cache: PrefixCache, most: int = 10) -> list[tuple[int, int]]:
    """The tokens and hits of the most popular prefixes."""
    return [(prefix.tokens, prefix.hits) for prefix in cache.reports.walk([""]).list_top_prefixes(most, 4)]


def test_a_prefix_counts_later_requests_that_begin_with_it() -> None:
    cache = new_cache()
    for last in range(4):
        serve(cache, (*DOCUMENT, 50 + last, 1, 1, 1))
    assert found(cache) == [(12, 3)]


def test_long_prefixes_go_before_short_ones_with_as_many_hits() -> None:
    cache = new_cache()
    for last in range(3):
        serve(cache, (*DOCUMENT[4:8], 50 + last, 1, 1, 1))
        serve(cache, (*DOCUMENT, 50 + last, 1, 1, 1))
    assert found(cache) == [(12, 2), (4, 2)]
    assert found(cache, most=1) == [(12, 2)]


def test_of_a_branch_only_the_prefix_that_saved_most_is_reported() -> None:
    cache = new_cache()
    for end in range(16, 40, 4):
        serve(cache, (*DOCUMENT, *range(16, end)))
    assert found(cache) == [(16, 4)]


def test_a_prefix_of_many_branches_is_reported_beside_them() -> None:
    cache = new_cache()
    for last in range(50, 53):
        for _ in range(2):
            serve(cache, (*DOCUMENT, last, 1, 1, 1, 2))
    assert found(cache) == [(12, 5), (16, 1), (16, 1), (16, 1)]


def test_a_prefix_is_reported_with_its_first_and_last_tokens_and_its_idle_time() -> None:
    cache = new_cache()
    serve(cache, DOCUMENT)
    start(cache, (*DOCUMENT, 1, 2))
    [used] = cache.reports.walk([""]).list_top_prefixes(1, 2)
    assert used == CachedPrefix("", pack(DOCUMENT[:2]), pack(DOCUMENT[-2:]), 12, 1, 0)


def test_a_limited_number_of_nodes_is_visited_the_most_hit_first(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(cache_reports, "MAX_VISITED", 8)
    cache = new_cache(num_pages=64)
    for first in range(10):
        for _ in range(first + 2):
            serve(cache, (first, 0, 0, 0))
            serve(cache, (first, 0, 0, 0, 1))
    assert found(cache)[0] == (4, 11)
    assert len(found(cache)) < 10


def test_of_many_children_those_with_the_most_hits_are_visited(monkeypatch: MonkeyPatch) -> None:
    cache = new_cache(num_pages=100)
    for first in range(40):
        for _ in range(first % 7 + 2):
            serve(cache, (first, 0, 0, 0, 1))
    expected = found(cache, most=5)
    assert expected == [(4, 7)] * 5
    monkeypatch.setattr(cache_reports, "MAX_VISITED", 12)
    assert found(cache, most=5) == expected


def test_an_evicted_prefix_is_not_reported() -> None:
    cache = new_cache(num_pages=5)
    for _ in range(2):
        serve(cache, (*DOCUMENT, 1))
    assert found(cache) == [(12, 1)]
    assert take_pages(cache, 5) is not None
    assert found(cache) == []
