"""Ghosts of evicted nodes. Pages have four tokens."""

from __future__ import annotations

import pytest
from arbora.radix_cache import PrefixCache, history
from arbora.radix_cache.node import Node
from prefix_requests import DOCUMENT, match, new_cache, serve, start
from prefix_world import pack, take_pages

OTHER = tuple(range(500, 512))


def remembered(cache: PrefixCache) -> list[Node]:
    return list(cache._tree.history.nodes)


def only_child(cache: PrefixCache) -> Node:
    root = cache._tree.roots[""]
    [node] = root.children.values()
    return node


def test_a_ghost_becomes_the_same_node_with_one_hit_more() -> None:
    cache = new_cache(num_pages=3)
    serve(cache, DOCUMENT)
    node = only_child(cache)
    serve(cache, OTHER)
    assert match(cache, DOCUMENT) == 0
    assert node in remembered(cache)
    serve(cache, DOCUMENT)
    assert only_child(cache) is node
    assert node.hits == 1
    assert match(cache, DOCUMENT) == 12


def test_a_ghost_holds_no_page_and_matches_nothing() -> None:
    cache = new_cache(num_pages=3)
    serve(cache, DOCUMENT)
    serve(cache, OTHER)
    [node] = remembered(cache)
    assert not node.pages
    assert match(cache, DOCUMENT) == 0
    stats = cache.stats()
    assert (stats.free, stats.evictable) == (0, 3)


def test_a_tail_that_was_evicted_page_by_page_is_one_ghost() -> None:
    cache = new_cache(num_pages=3)
    serve(cache, DOCUMENT)
    for _ in range(2):
        take_pages(cache, 1)
    [node] = remembered(cache)
    assert node.parent is only_child(cache)
    assert node.sequence() == only_child(cache).tokens + node.tokens
    assert len(node.tokens) // 4 == 8


def test_a_node_evicted_page_by_page_keeps_count_of_its_extensions() -> None:
    cache = new_cache(num_pages=6)
    longer = (*DOCUMENT, 7, 7, 7, 7)
    serve(cache, DOCUMENT)
    serve(cache, longer)
    serve(cache, (*longer, 8))
    document = only_child(cache)
    assert (document.hits, document.extended) == (2, 1)
    serve(cache, OTHER[:4])
    for _ in range(5):
        take_pages(cache, 1)
    [memory] = [node for node in remembered(cache) if node.sequence() == pack(DOCUMENT)]
    assert memory.tokens == pack(DOCUMENT)
    assert (memory.hits, memory.extended) == (2, 1)


def test_ghosts_below_a_leaf_stay_behind_it_when_the_leaf_loses_its_end() -> None:
    cache = new_cache(num_pages=4)
    longer = (*DOCUMENT, 7, 7, 7, 7)
    serve(cache, DOCUMENT)
    serve(cache, longer)
    for _ in range(2):
        take_pages(cache, 1)
    assert only_child(cache).tokens == pack(DOCUMENT[:8])
    assert sorted(node.sequence() for node in remembered(cache)) == sorted([pack(DOCUMENT), pack(longer)])


def test_a_sequence_that_differs_from_a_ghost_takes_only_their_common_pages() -> None:
    cache = new_cache(num_pages=4)
    serve(cache, DOCUMENT)
    serve(cache, (*OTHER, 1, 2, 3, 4))
    serve(cache, (*DOCUMENT[:8], 7, 7, 7, 7))
    [below] = [node for node in remembered(cache) if node.tokens == pack(DOCUMENT[8:])]
    assert below.parent is not None
    assert below.parent.tokens == pack(DOCUMENT[:8])
    assert below.parent.hits == 1
    assert [child.hits for child in below.parent.children.values()] == [0]


def test_the_oldest_ghosts_are_forgotten_first() -> None:
    cache = new_cache(num_pages=3)
    limit = cache._tree.policy.history
    sequences = [tuple(range(base, base + 12)) for base in range(0, 12 * limit, 12)]
    for tokens in sequences:
        serve(cache, tokens)
    kept = {node.tokens for node in remembered(cache)}
    assert cache._tree.history.num_pages == limit
    assert pack(sequences[0]) not in kept
    assert pack(sequences[-2]) in kept


def test_of_very_many_ghosts_a_sample_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MANY", 4)
    cache = new_cache(num_pages=30)
    limit = cache._tree.policy.history
    for base in range(0, 12 * limit, 12):
        serve(cache, tuple(range(base, base + 12)))
    numbers = [int.from_bytes(node.tokens[:4], "little") // 12 for node in remembered(cache)]
    newest = limit - 30 // 3 - 1
    assert 8 < len(numbers) < limit / 3 / 4, "many times fewer than were evicted"
    assert newest - limit // 3 < numbers[0] < newest - limit // 6, "from as long ago as without a sample"


def test_a_partial_last_page_leaves_no_ghost() -> None:
    cache = new_cache(num_pages=3)
    serve(cache, DOCUMENT[:6])
    serve(cache, OTHER)
    assert [len(node.tokens) // 4 for node in remembered(cache)] == [4]


def test_a_namespace_without_pages_has_no_ghosts() -> None:
    cache = new_cache(num_pages=3)
    serve(cache, DOCUMENT, "tenant")
    serve(cache, OTHER)
    assert remembered(cache) == []


def test_discarded_nodes_leave_no_ghosts() -> None:
    cache = new_cache(num_pages=4)
    serve(cache, DOCUMENT)
    take_pages(cache, 2)
    assert remembered(cache)
    lock = cache.acquire(cache.match("", pack(DOCUMENT), 8))
    cache.discard(lock)
    assert remembered(cache) == []


def test_a_match_without_computing_is_no_hit() -> None:
    cache = new_cache()
    serve(cache, DOCUMENT)
    for _ in range(3):
        lock = cache.acquire(cache.match("", pack((*DOCUMENT, 1)), 12))
        cache.release(lock, pack(DOCUMENT))
    assert only_child(cache).hits == 0


def test_ghosts_stay_in_place_when_a_sequence_extends_the_node_above_them() -> None:
    cache = new_cache(num_pages=7)
    going_on = start(cache, DOCUMENT[:9], commit=False)
    other = start(cache, (*DOCUMENT[:8], 7, 7, 7, 7), commit=False)
    cache.commit(going_on, pack(DOCUMENT[:8]))
    cache.release(other, pack((*DOCUMENT[:8], 7, 7, 7, 7)))
    assert take_pages(cache, 4) is not None
    [memory] = remembered(cache)
    cache.commit(going_on, pack(DOCUMENT))
    assert memory.sequence() == pack((*DOCUMENT[:8], 7, 7, 7, 7))
