"""The nodes of the tree that a walk lists. Pages have four tokens."""

from __future__ import annotations

import pytest
from arbora.radix_cache import PrefixCache, TreeNode, cache_reports
from prefix_requests import DOCUMENT, new_cache, serve, start
from prefix_world import pack, take_pages


def list_nodes(cache: PrefixCache, most: int = 100, names: tuple[str, ...] = ("",)) -> list[TreeNode]:
    return cache.reports.walk(names).list_largest(most, 2)


def test_a_shared_prefix_is_the_parent_of_the_nodes_that_continue_it() -> None:
    cache = new_cache()
    for last in (50, 51):
        serve(cache, (*DOCUMENT, last, 1, 1, 1))
    root, shared, *ends = list_nodes(cache)
    assert (root.parent, root.tokens, root.tokens_below, root.id) == (None, 0, 20, None)
    assert (shared.parent, shared.tokens, shared.pages, shared.tokens_below) == (0, 12, 3, 8)
    assert shared.head == pack(DOCUMENT[:2])
    assert [(end.parent, end.tokens, end.head) for end in ends] == [
        (1, 4, pack([50, 1])),
        (1, 4, pack([51, 1])),
    ]


def test_only_the_largest_branches_are_listed_and_the_others_counted() -> None:
    cache = new_cache()
    serve(cache, (*DOCUMENT, 50, 1, 1, 1))
    for first in range(60, 65):
        serve(cache, (first, 1, 1, 1))
    root, largest = list_nodes(cache, most=2)
    assert (largest.tokens + largest.tokens_below, root.folded, largest.folded) == (16, 5, 0)
    assert root.tokens_below == 36


def test_requests_pins_and_leases_count_at_all_nodes_that_they_use() -> None:
    cache = new_cache()
    for last in (50, 51):
        serve(cache, (*DOCUMENT, last, 1, 1, 1))
    start(cache, (*DOCUMENT, 50, 1, 1, 1, 9))
    cache.lease("me", "", pack((*DOCUMENT, 51, 1, 1, 1)), 10.0, 100, is_breakable=False)
    cache.lease("me", "", pack(DOCUMENT), 10.0, 100)
    root, shared, *ends = list_nodes(cache)
    assert [(each.requests, each.pins, each.leases) for each in (root, shared)] == [(1, 1, 1), (1, 1, 1)]
    assert sorted((end.requests, end.pins, end.leases) for end in ends) == [(0, 1, 0), (1, 0, 0)]


def test_a_waiting_request_counts_at_the_nodes_that_it_would_use() -> None:
    cache = new_cache()
    for last in (50, 51):
        serve(cache, (*DOCUMENT, last, 1, 1, 1))
    prompts = [(*DOCUMENT, 50, 1, 1, 1, 9), (*DOCUMENT, 51, 1, 8), DOCUMENT, (*DOCUMENT, 77), (99, 98)]
    waiting: list[cache_reports.Prompt] = [("", pack(prompt)) for prompt in prompts]
    waiting += [(None, pack(DOCUMENT)), ("unknown", pack(DOCUMENT))]
    root, shared, *ends = cache.reports.walk([""], waiting).list_largest(100, 2)
    assert (root.waiting, shared.waiting) == (5, 4)
    assert {end.head: end.waiting for end in ends} == {pack([50, 1]): 1, pack([51, 1]): 1}
    assert not any(node.waiting or node.requests for node in list_nodes(cache))


def test_an_evicted_node_is_listed_without_pages() -> None:
    cache = new_cache(num_pages=8)
    serve(cache, (*DOCUMENT, 50, 1, 1, 1))
    pages = take_pages(cache, 6)
    assert pages is not None
    found = list_nodes(cache)
    assert [(node.id is None, node.pages) for node in found if node.parent is not None and not node.pages]
    assert sum(node.pages for node in found) == 2


def test_a_walk_visits_a_limited_number_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = new_cache(num_pages=64)
    for first in range(20):
        serve(cache, (first, 1, 1, 1))
    assert cache.reports.walk([""]).is_complete
    monkeypatch.setattr(cache_reports, "MAX_VISITED", 10)
    few = cache.reports.walk([""])
    assert (len(few.list_largest(100, 2)), few.is_complete) == (11, False)


def test_a_walk_considers_a_limited_number_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_reports, "MAX_LISTED", 3)
    cache = new_cache(num_pages=64)
    for first in range(3):
        for last in (50, 51):
            serve(cache, (first, 0, 0, 0, last, 1, 1, 1))
    few = cache.reports.walk([""])
    assert (len(few.list_largest(100, 2)), few.is_complete) == (4, False)


def test_the_most_used_nodes_are_visited_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_reports, "MAX_VISITED", 3)
    cache = new_cache(num_pages=64)
    for first in range(10):
        for _ in range(first + 1):
            serve(cache, (first, 1, 1, 1, 2))
    found = cache.reports.walk([""]).list_largest(100, 1)
    assert [node.head for node in found] == [b"", pack([9]), pack([8]), pack([7])]


@pytest.mark.parametrize("limit", ["MAX_VISITED", "MAX_LISTED"])
def test_the_limits_of_a_walk_do_not_hide_a_namespace(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_reports, limit, 3)
    cache = new_cache(num_pages=64)
    for first in range(10):
        serve(cache, (first, 1, 1, 1), "large")
    for _ in range(2):
        serve(cache, DOCUMENT, "used")
    found = cache.reports.walk(["large", "used"])
    assert not found.is_complete
    assert [prefix.namespace for prefix in found.list_top_prefixes(9, 1)] == ["used"]


def test_other_namespaces_are_left_out() -> None:
    cache = new_cache()
    serve(cache, DOCUMENT)
    assert list_nodes(cache, names=("other",)) == []


def test_the_tokens_of_a_node_are_found_by_its_first_page() -> None:
    cache = new_cache()
    for last in (50, 51):
        serve(cache, (*DOCUMENT, last, 1, 1, 1))
    _, shared, end, _ = list_nodes(cache)
    assert shared.id is not None and end.id is not None
    walk = cache.reports.walk([""])
    assert walk.read_edge(shared.id, 100) == pack(DOCUMENT)
    assert walk.read_edge(end.id, 3) == pack([50, 1, 1])
    assert walk.read_edge(10_000, 100) is None
    assert cache.reports.walk(["other"]).read_edge(shared.id, 100) is None
