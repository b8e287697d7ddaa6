"""The cache of compiled grammars in memory: evictions and notifications."""

from __future__ import annotations

from concurrent.futures import Future
from typing import NamedTuple

from arbora.grammars.service.cache import ENTRY_BYTES, GrammarCache


class Grammar(NamedTuple):
    host_nbytes: int


class World:
    def __init__(self, most: int) -> None:
        self.told = 0
        self.cache: GrammarCache[str, Grammar] = GrammarCache(most * (100 + ENTRY_BYTES), self.tell)
        self.begun: list[str] = []

    def tell(self) -> None:
        self.told += 1

    def future(self, source: str) -> Future[Grammar]:
        def begin() -> Future[Grammar]:
            self.begun.append(source)
            return Future()

        return self.cache.get(source, begin)

    def made(self, source: str, nbytes: int = 100) -> Future[Grammar]:
        future = self.future(source)
        if not future.done():
            future.set_result(Grammar(nbytes))
        self.cache.take_done()
        return future


def test_a_grammar_is_compiled_once_for_all_requests() -> None:
    world = World(2)
    assert world.future("a") is world.future("a")
    assert world.begun == ["a"]


def test_the_owner_is_notified_when_a_future_completes() -> None:
    world = World(2)
    future = world.future("a")
    assert world.told == 0
    future.set_result(Grammar(1))
    assert world.told == 1


def test_the_least_recently_used_grammars_are_evicted() -> None:
    world = World(3)
    for source in "abcad":
        world.made(source)
    for source in "acdb":
        world.made(source)
    assert world.begun == [*"abcd", "b"]


def test_an_incomplete_future_is_never_evicted() -> None:
    world = World(1)
    waiting = world.future("waiting")
    for source in "abc":
        world.made(source)
    assert world.future("waiting") is waiting


def test_a_grammar_counts_by_its_bytes() -> None:
    world = World(4)
    for source in "abc":
        world.made(source)
    world.made("large", 3 * ENTRY_BYTES)
    for source in "abc":
        world.made(source)
    assert world.begun[:4] == ["a", "b", "c", "large"]
    assert set(world.begun[4:]) >= {"a", "b"}


def test_refused_and_cancelled_grammars_count_too() -> None:
    world = World(1)
    world.future("wrong").set_exception(ValueError("no"))
    assert world.future("gone").cancel()
    world.cache.take_done()
    world.cache.forget("gone", world.future("gone"))
    world.made("a")
    world.made("wrong")
    assert world.begun == ["wrong", "gone", "a", "wrong"]
