"""The memory of recent prompts: what it finds, how large it gets, and what it tells to others."""

from __future__ import annotations

import tracemalloc
from array import array
from collections.abc import Sequence

import pytest
from arbora.frontend.core.cache_misses.outline import outline_of
from arbora.frontend.core.cache_misses.recent_prompts import Place, RecentPrompts
from hypothesis import given
from hypothesis import strategies as st

MINE = Place("", "")


def packed(ids: Sequence[int]) -> bytes:
    return array("i", ids).tobytes()


def common(left: Sequence[int], right: Sequence[int]) -> int:
    pairs = zip(left, right, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


@given(
    before=st.lists(st.lists(st.integers(-300, 300), max_size=6), min_size=1, max_size=20),
    prompt=st.lists(st.integers(-300, 300), max_size=6),
)
def test_the_longest_common_beginning_is_found(before: list[list[int]], prompt: list[int]) -> None:
    recent = RecentPrompts()
    for each in before:
        recent.add(MINE, packed(each), ())
    near = recent.nearest(MINE, packed(prompt), ())
    assert near is not None
    assert near.shared == max(common(prompt, each) for each in before)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2), st.integers(1, 400))))
def test_it_never_holds_more_than_its_limit(prompts: list[tuple[str, int, int]]) -> None:
    recent = RecentPrompts(max_bytes=4096)
    for namespace, first, length in prompts:
        messages = [{"role": "user", "content": f"{first} {length}"}]
        parts = outline_of(messages, None, ()).parts
        seen = recent.add(Place("", namespace), packed([first, *range(length)]), parts)
        recent.extend(seen, packed(range(length)))
        assert recent.bytes_used <= 4096
    recent.drop(lambda name: True)
    assert recent.bytes_used == 0


@pytest.mark.parametrize(
    ("owners", "salts", "prompts", "tokens", "messages"),
    [(1, 500, 1, 10, 0), (500, 1, 1, 10, 0), (1, 1, 500, 10, 1), (1, 100, 1, 10, 20), (2, 5, 10, 2000, 5)],
)
def test_its_size_is_the_memory_that_it_takes(
    owners: int, salts: int, prompts: int, tokens: int, messages: int
) -> None:
    recent = RecentPrompts()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for owner in range(owners):
        for salt in range(salts):
            for number in range(prompts):
                said = [{"role": "user", "content": f"{owner} {salt} {number} {m}"} for m in range(messages)]
                parts = outline_of(said, None, ()).parts
                place = Place(f"{owner:032}", f"{salt:064}")
                recent.add(place, packed([owner, salt, number, *range(tokens)]), parts)
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert 0.7 < taken / recent.bytes_used < 1.2


def test_a_conversation_is_kept_once() -> None:
    recent = RecentPrompts()
    seen = recent.add(MINE, packed(range(100)), ())
    recent.extend(seen, packed(range(100, 120)))
    used = recent.bytes_used
    recent.add(MINE, packed(range(130)), ())
    assert recent.bytes_used == used + 4 * 10


def test_another_owners_prompts_are_not_compared_with() -> None:
    recent = RecentPrompts()
    recent.add(Place("first", ""), packed(range(100)), ())
    assert recent.nearest(Place("second", ""), packed(range(100)), ()) is None
    assert recent.elsewhere(Place("second", "salted"), packed(range(100))) == 0


def test_an_owner_with_a_key_is_told_of_all_its_namespaces() -> None:
    recent = RecentPrompts()
    recent.add(Place("first", "one"), packed(range(100)), ())
    assert recent.elsewhere(Place("first", "two"), packed(range(50))) == 50


def test_without_keys_only_the_open_namespace_is_told_of() -> None:
    recent = RecentPrompts()
    recent.add(Place("", "one"), packed(range(100)), ())
    assert recent.elsewhere(Place("", "two"), packed(range(50))) == 0
    recent.add(MINE, packed(range(40)), ())
    assert recent.elsewhere(Place("", "two"), packed(range(50))) == 40


def test_a_dropped_namespace_is_forgotten() -> None:
    recent = RecentPrompts()
    recent.add(MINE, packed(range(100)), ())
    recent.drop(lambda name: name == "")
    assert recent.nearest(MINE, packed(range(100)), ()) is None
