"""The order of eviction under the reference policy."""

from __future__ import annotations

from arbora.radix_cache.node import Node
from hypothesis import given
from hypothesis import strategies as st
from least_recently_used import LeastRecentlyUsed


def leaf(last_use: int) -> Node:
    return Node("", None, b"", b"", (), last_use)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99)), max_size=60))
def test_leaves_are_evicted_by_last_use_also_after_discards(steps: list[tuple[int, int]]) -> None:
    queue = LeastRecentlyUsed()
    queued: list[Node] = []
    for action, number in steps:
        if action < 7 or not queued:
            queued.append(leaf(number))
            queue.add(queued[-1])
        elif action == 7:
            assert queue.pop() is queued.pop(min(range(len(queued)), key=lambda i: queued[i].last_use))
        else:
            queue.discard(queued.pop(number % len(queued)))
        assert len(queue) == len(queued)
    rest = sorted(queued, key=lambda node: node.last_use)
    assert [queue.pop() for _ in rest] == rest


def test_a_leaf_that_was_used_again_moves_back() -> None:
    queue = LeastRecentlyUsed()
    first, second = leaf(1), leaf(2)
    queue.add(first)
    queue.add(second)
    queue.discard(first)
    first.last_use = 3
    queue.add(first)
    assert [queue.pop(), queue.pop()] == [second, first]


def test_stale_entries_do_not_pile_up() -> None:
    queue = LeastRecentlyUsed()
    node = leaf(0)
    for _ in range(10_000):
        queue.add(node)
        queue.discard(node)
    assert len(queue._heap) < 100


def test_an_older_leaf_that_is_added_later_is_evicted_first() -> None:
    queue = LeastRecentlyUsed()
    old, middle, new = leaf(1), leaf(2), leaf(3)
    assert queue.add_and_pop(middle) is middle
    queue.add(middle)
    assert queue.add_and_pop(old) is old
    assert queue.add_and_pop(new) is middle
    assert [queue.pop(), len(queue)] == [new, 0]


def test_discarding_a_leaf_that_is_not_queued_does_nothing() -> None:
    queue = LeastRecentlyUsed()
    queue.discard(leaf(0))
    assert len(queue) == 0
