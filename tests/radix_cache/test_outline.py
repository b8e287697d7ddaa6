"""The outline of the tree. Pages have four tokens."""

from __future__ import annotations

import pytest
from arbora.radix_cache import OutlinedNode, PrefixCache, outline
from prefix_requests import DOCUMENT, new_cache, serve, start
from prefix_world import pack


def listed(cache: PrefixCache, most: int = 100, names: tuple[str, ...] = ("",)) -> list[OutlinedNode]:
    return cache.reports.outline(names, most, 2).nodes


def test_a_shared_prefix_is_the_parent_of_the_nodes_that_continue_it() -> None:
    cache = new_cache()
    for last in (50, 51):
        serve(cache, (*DOCUMENT, last, 1, 1, 1))
    root, shared, *ends = listed(cache)
    assert (root.parent, root.tokens, root.tokens_below, root.page) == (None, 0, 20, None)
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
    root, largest = listed(cache, most=2)
    assert (largest.tokens + largest.tokens_below, root.folded, largest.folded) == (16, 5, 0)
    assert root.tokens_below == 36


def test_requests_pins_and_leases_count_at_all_nodes_that_they_use() -> None:
    cache = new_cache()
    for last in (50, 51):
        serve(cache, (*DOCUMENT, last, 1, 1, 1))
    start(cache, (*DOCUMENT, 50, 1, 1, 1, 9))
    cache.lease("me", "", pack((*DOCUMENT, 51, 1, 1, 1)), 10.0, 100, is_breakable=False)
    cache.lease("me", "", pack(DOCUMENT), 10.0, 100)
    root, shared, *ends = listed(cache)
    assert [(each.requests, each.pins, each.leases) for each in (root, shared)] == [(1, 1, 1), (1, 1, 1)]
    assert sorted((end.requests, end.pins, end.leases) for end in ends) == [(0, 1, 0), (1, 0, 0)]


def test_a_waiting_request_counts_at_the_nodes_that_it_would_use() -> None:
    cache = new_cache()
    for last in (50, 51):
        serve(cache, (*DOCUMENT, last, 1, 1, 1))
    prompts = [(*DOCUMENT, 50, 1, 1, 1, 9), (*DOCUMENT, 51, 1, 8), DOCUMENT, (*DOCUMENT, 77), (99, 98)]
    waiting: list[outline.Prompt] = [("", pack(prompt)) for prompt in prompts]
    waiting += [(None, pack(DOCUMENT)), ("unknown", pack(DOCUMENT))]
    root, shared, *ends = cache.reports.outline([""], 100, 2, waiting).nodes
    assert (root.waiting, shared.waiting) == (5, 4)
    assert {end.head: end.waiting for end in ends} == {pack([50, 1]): 1, pack([51, 1]): 1}
    assert not any(node.waiting or node.requests for node in listed(cache))


def test_an_evicted_node_is_listed_without_pages() -> None:
    cache = new_cache(num_pages=8)
    serve(cache, (*DOCUMENT, 50, 1, 1, 1))
    pages = cache.allocate(6)
    assert pages is not None
    found = listed(cache)
    assert [(node.page is None, node.pages) for node in found if node.parent is not None and not node.pages]
    assert sum(node.pages for node in found) == 2


def test_an_outline_visits_a_limited_number_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = new_cache(num_pages=64)
    for first in range(20):
        serve(cache, (first, 1, 1, 1))
    assert cache.reports.outline([""], 100, 2).is_complete
    monkeypatch.setattr(outline, "MAX_VISITED", 10)
    few = cache.reports.outline([""], 100, 2)
    assert (len(few.nodes), few.is_complete) == (10, False)


def test_other_namespaces_are_left_out() -> None:
    cache = new_cache()
    serve(cache, DOCUMENT)
    assert listed(cache, names=("other",)) == []


def test_the_tokens_of_a_node_are_found_by_its_first_page() -> None:
    cache = new_cache()
    for last in (50, 51):
        serve(cache, (*DOCUMENT, last, 1, 1, 1))
    _, shared, end, _ = listed(cache)
    assert shared.page is not None and end.page is not None
    assert cache.reports.edge("", shared.page, 100) == pack(DOCUMENT)
    assert cache.reports.edge("", end.page, 3) == pack([50, 1, 1])
    assert cache.reports.edge("", 10_000, 100) is None
    assert cache.reports.edge("other", shared.page, 100) is None
