"""Saved pages are found again in host memory and on disk, byte for byte."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from arbora.runtime.messages import (
    EndFetch,
    FetchPages,
    PagesInTiers,
    SavedPages,
    SavePages,
    UsedPages,
)
from arbora.runtime.model.tiers import StepMoves, page_store
from arbora.runtime.model.tiers.disk import FILE_NAME, FILE_PAGE_BYTES, DiskStore
from arbora.runtime.model.tiers.fetches import Fetches
from arbora.runtime.model.tiers.host_memory import HostMemory
from arbora.runtime.model.tiers.host_pool import HostPool
from arbora.runtime.model.tiers.page_store import Uses
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from page_world import LIMIT, PAGES, World, key_bytes, packed


@pytest.fixture(params=[False, True], ids=["memory", "disk"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    yield World(tmp_path, places=8, disk=request.param)


def test_a_restored_page_equals_the_saved_one(world: World) -> None:
    expected = [world.content(page) for page in (3, 7)]
    world.save([1, 2], [3, 7])
    for kv in world.kvs:
        kv.zero_()
    fetch, found = world.fetch([1, 2, 3])
    assert found == 2
    world.restore(fetch, 0, [9, 4])
    assert torch.equal(world.content(9), expected[0])
    assert torch.equal(world.content(4), expected[1])
    assert not world.content(3).any()


def test_a_finished_restore_has_copied_layers_that_were_not_asked_for(world: World) -> None:
    expected = world.content(3)
    world.save([1], [3])
    fetch, _ = world.fetch([1])
    moves = world.begin_restore(fetch, 0, [9], [fetch])
    assert moves.restore is not None
    moves.restore.arrive(0)
    world.mover.finish(moves)
    assert torch.equal(world.content(9), expected)


def test_a_restore_may_begin_inside_a_fetch(world: World) -> None:
    expected = world.content(7)
    world.save([1, 2], [3, 7])
    fetch, _ = world.fetch([1, 2])
    world.restore(fetch, 1, [0])
    assert torch.equal(world.content(0), expected)


def test_a_fetch_ends_at_the_first_page_that_is_missing(world: World) -> None:
    world.save([1, 3], [3, 7])
    assert world.fetch([1, 2, 3])[1] == 1
    assert world.fetch([2, 3])[1] == 0


def test_pages_are_counted_in_the_fastest_tier_that_has_them(tmp_path: Path) -> None:
    world = World(tmp_path, places=4, disk=True)
    world.save([1, 2, 3], [1, 2, 3])
    world.wait_for_counts(host_pages=3, disk_pages=3)
    world.save([4, 5], [4, 5])  # the last of the first three pages is evicted from memory
    world.wait_for_counts(host_pages=4, disk_pages=5)
    assert world.locate([1, 2, 3, 9], [], [4]) == [
        PagesInTiers(4, host=2, disk=1),
        PagesInTiers(0, host=0, disk=0),
        PagesInTiers(1, host=1, disk=0),
    ]


def test_without_a_disk_only_host_memory_has_pages(tmp_path: Path) -> None:
    world = World(tmp_path, places=4, disk=False)
    world.save([1, 2], [1, 2])
    assert world.locate([1, 2, 3]) == [PagesInTiers(3, host=2, disk=0)]


def hold_until(monkeypatch: pytest.MonkeyPatch, fetches: Fetches, name: str, times: int) -> None:
    """Nothing is brought before that method of theirs was called so often."""
    method, advance, called = getattr(fetches, name), fetches.advance, list[int]()

    def counted(number: int) -> None:
        method(number)
        called.append(number)

    monkeypatch.setattr(fetches, name, counted)
    monkeypatch.setattr(fetches, "advance", lambda: advance() if len(called) >= times else None)


def test_short_fetches_do_not_wait_for_long_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, places=32, disk=False)
    pages = list(range(PAGES))
    world.save(pages, pages)
    much, little = world.find(pages), world.find([5])
    hold_until(monkeypatch, world.store._fetches, "read", times=2)
    for number, _ in (much, little):
        world.outbox.send(FetchPages(number))
    assert [world.fetched(), world.fetched()] == [little, much]


@pytest.mark.parametrize("asked", [False, True])
def test_an_ended_fetch_releases_its_pages(
    tmp_path: Path, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, places=32, disk=False)
    pages = list(range(PAGES))
    world.save(pages, pages)
    number, _ = world.find(pages)
    hold_until(monkeypatch, world.store._fetches, "end", times=1)  # the end comes before all is brought
    if asked:
        world.outbox.send(FetchPages(number))
    world.outbox.send(EndFetch(number))
    other, _ = world.fetch([1])
    assert world.store.pool._entries.keys() - world.store.pool._idle.keys() == {key_bytes([1])}
    world.outbox.send(EndFetch(other))
    world.find([1])
    assert len(world.store.pool._idle) == PAGES


def test_in_memory_the_least_recently_used_pages_are_evicted_later_ones_before_earlier_ones(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, places=8, disk=False)
    world.save([1, 2, 3, 4], [1, 2, 3, 4])
    world.save([11, 12, 13, 14], [5, 6, 7, 8])
    fetch, _ = world.fetch([1])
    world.mover.finish(StepMoves(None, [], [fetch]))
    world.save([21], [9])
    assert world.fetch([1, 2, 3, 4])[1] == 3
    assert world.fetch([11, 12, 13, 14])[1] == 4


def test_in_memory_pages_that_are_saved_again_count_as_used(tmp_path: Path) -> None:
    world = World(tmp_path, places=4, disk=False)
    world.save([1, 2], [1, 2])
    world.save([3, 4], [3, 4])
    world.save([1, 2], [1, 2])
    world.save([5, 6], [5, 6])
    assert [world.find([key])[1] for key in (1, 2, 3, 4, 5, 6)] == [1, 1, 0, 0, 1, 1]


def test_pages_of_a_fetch_stay_and_pages_that_do_not_fit_are_lost(tmp_path: Path) -> None:
    world = World(tmp_path, places=2, disk=False)
    expected = world.content(1)
    world.save([1, 2], [1, 2])
    fetch, _ = world.fetch([1, 2])
    world.save([3], [3])
    world.wait_for_counts(lost_pages=1, host_pages=2)
    world.restore(fetch, 0, [5, 6])
    assert torch.equal(world.content(5), expected)
    world.save([3], [3])
    assert world.fetch([3])[1] == 1


def test_the_disk_has_more_than_memory_and_outlives_it(tmp_path: Path) -> None:
    world = World(tmp_path, places=4, disk=True)
    expected = [world.content(page) for page in range(12)]
    for page in range(0, 12, 2):
        world.flush([SavedPages("", key_bytes([page, page + 1]), packed([page, page + 1]))])
    (tmp_path / "again").mkdir()
    again = World(tmp_path / "again", places=4, disk=False)
    again.store.tiers.disk = DiskStore(tmp_path, LIMIT)
    for page in range(12):
        fetch, found = again.fetch([page])
        assert found == 1
        again.restore(fetch, 0, [page])
        assert torch.equal(again.content(page), expected[page])
    again.wait_for_counts(disk_hits=12, host_hits=0, restored_pages=12)


def test_a_page_is_written_to_disk_once(tmp_path: Path) -> None:
    world = World(tmp_path, places=2, disk=True)
    for _ in range(3):
        world.flush([SavedPages("", key_bytes([1]), packed([1]))])
        world.flush([SavedPages("", key_bytes([2, 3]), packed([2, 3]))])
    with sqlite3.connect(tmp_path / FILE_NAME) as database:
        assert database.execute("SELECT count(*) FROM contents").fetchone() == (3,)


def test_on_disk_later_pages_of_a_prefix_go_before_earlier_ones(tmp_path: Path) -> None:
    world = World(tmp_path, places=8, disk=True)
    recent = SavedPages("", key_bytes([1, 2, 3, 4]), packed([1, 2, 3, 4]))
    older = SavedPages("", key_bytes([5, 6]), packed([5, 6]))
    world.flush([recent, older])
    with sqlite3.connect(tmp_path / FILE_NAME) as database:
        rows = database.execute("SELECT key FROM pages ORDER BY used DESC").fetchall()
    assert [int.from_bytes(key, "big") for (key,) in rows] == [1, 2, 3, 4, 5, 6]


def test_on_disk_pages_used_on_the_device_count_as_used_and_prefixes_as_used_later(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, places=8, disk=True)
    for keys in ([1, 2], [3, 4], [9]):
        world.mover.save_computed(SavePages([SavedPages("", key_bytes(keys), packed(keys))]))
        world.mover.publish_saves()
        world.store.finish()
    world.outbox.send(UsedPages(key_bytes([1, 2, 3, 4, 5])))
    assert [int.from_bytes(key, "big") for key in keys_by_use(tmp_path, last=1)] == [1, 2, 3, 4, 9]


def test_uses_on_the_device_are_written_down_many_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_store, "IDLE_MS", 3000)  # ten times that is more than all the uses take
    world = World(tmp_path, places=8, disk=True)
    world.mover.save_computed(SavePages([SavedPages("", key_bytes([1, 9]), packed([1, 9]))]))
    world.mover.publish_saves()
    world.store.finish()
    statements: list[str] = []
    assert world.store.tiers.disk is not None
    world.store.tiers.disk._database.set_trace_callback(statements.append)
    for _ in range(20):
        world.outbox.send(UsedPages(key_bytes([9])))
        world.find([1])
    assert keys_by_use(tmp_path, last=9) == [key_bytes([9]), key_bytes([1])]
    assert 1 <= statements.count("COMMIT") < 10


def test_of_uses_that_the_disk_does_not_know_of_the_last_are_kept() -> None:
    uses = Uses(max_keys=5)
    for keys in ([1, 2, 3], [4, 5], [6], [7, 8]):
        uses.add(key_bytes(keys))
    assert list(uses.take()) == [[key_bytes([key]) for key in keys] for keys in ([4, 5], [6], [7, 8])]
    uses.add(key_bytes([1, 2, 3, 4, 5, 6]))
    assert [len(keys) for keys in uses.take()] == [6]
    assert not uses


def keys_by_use(directory: Path, last: int) -> list[bytes]:
    """The pages, the most recently used first, once the first is `last`."""
    for _ in range(3000):
        with sqlite3.connect(directory / FILE_NAME) as database:
            keys = [key for (key,) in database.execute("SELECT key FROM pages ORDER BY used DESC")]
        if keys[:1] == [key_bytes([last])]:
            return keys
        time.sleep(0.02)
    raise AssertionError("the use was not written down")


def test_a_flush_saves_more_than_memory_holds(tmp_path: Path) -> None:
    world = World(tmp_path, places=2, disk=True)
    pages = list(range(20))
    world.flush([SavedPages("", key_bytes(pages), packed(pages))])
    assert len(DiskStore(tmp_path, LIMIT).keys) == 20


def test_a_flush_to_a_small_disk_keeps_the_most_recently_used_pages(tmp_path: Path) -> None:
    limit = 16 * FILE_PAGE_BYTES
    world = World(tmp_path, places=4, disk=True, limit=limit)
    world.save([1], [0])
    world.store.finish()
    world.flush([SavedPages("", key_bytes([page, page + 1]), packed([0, 1])) for page in range(100, 400, 2)])
    kept = sorted(int.from_bytes(key, "big") for key in DiskStore(tmp_path, limit).keys)
    assert kept == list(range(100, 100 + len(kept)))
    assert 20 < len(kept) < 300


def test_a_flush_copies_nothing_that_is_on_disk_already(tmp_path: Path) -> None:
    world = World(tmp_path, places=2, disk=True)
    for key in (1, 3):
        world.save([key, key + 1], [key, key + 1])
        world.store.finish()
    world.flush([SavedPages("", key_bytes([1, 2, 3, 4, 5]), packed([1, 2, 3, 4, 5]))])
    world.wait_for_counts(saved_pages=5, disk_pages=5)


def test_a_flush_writes_pages_in_memory_that_the_disk_has_lost(tmp_path: Path) -> None:
    world = World(tmp_path, places=1000, disk=True, limit=16 * FILE_PAGE_BYTES)
    for key in range(0, 200, 8):
        world.save(list(range(key, key + 8)), list(range(8)))
        world.store.finish()
    lost = key_bytes([0, 1])
    assert world.find([0, 1])[1] == 2
    world.flush([SavedPages("", lost, packed([0, 1]))])
    world.wait_for_counts(saved_pages=200)
    assert {lost[:16], lost[16:]} <= DiskStore(tmp_path, LIMIT).keys


def test_a_flush_does_not_wait_for_places_that_fetches_held(tmp_path: Path) -> None:
    world = World(tmp_path, places=2, disk=True)
    world.save([1, 2], [1, 2])
    fetch, _ = world.fetch([1, 2])
    world.flush([SavedPages("", key_bytes([3, 4]), packed([3, 4]))], [fetch])
    assert len(DiskStore(tmp_path, LIMIT).keys) == 4


def test_a_flush_copies_nothing_to_memory_that_ends_with_the_process(tmp_path: Path) -> None:
    world = World(tmp_path, places=2, disk=False)
    world.flush([SavedPages("", key_bytes([1]), packed([1]))])
    assert len(world.store.pool) == 0


class AnyOrder(RuleBasedStateMachine):
    """The books of host memory: no place has two owners, and none is lost."""

    @initialize(places=st.integers(1, 6))
    def start(self, places: int) -> None:
        self.pool = HostPool(HostMemory(places * 8, pinned=False), 8)
        self.held: list[list] = []  # type: ignore[type-arg]

    @rule(key=st.integers(0, 9), to_write=st.booleans(), namespace=st.sampled_from("ab"))
    def save(self, key: int, to_write: bool, namespace: str) -> None:
        entry = self.pool.reserve(key.to_bytes(16, "big"), namespace)
        if entry is not None:
            self.pool.content(entry)[:] = bytes([key] * 8)
            self.pool.enter(entry, to_write)
            self.pool.release([entry])

    @rule(key=st.integers(0, 9))
    def give_up_reading(self, key: int) -> None:
        entry = self.pool.reserve(key.to_bytes(16, "big"))
        if entry is not None:
            self.pool.release([entry])

    @rule()
    def write(self) -> None:
        if self.pool.to_write:
            self.pool.release([self.pool.to_write.popleft()])

    @rule(keys=st.lists(st.integers(0, 9), unique=True, max_size=4))
    def fetch(self, keys: list[int]) -> None:
        entries = [self.pool.hold(key.to_bytes(16, "big")) for key in keys]
        self.held.append([entry for entry in entries if entry is not None])

    @rule()
    def end(self) -> None:
        if self.held:
            self.pool.release(self.held.pop())

    @rule(namespace=st.sampled_from("ab"))
    def forget(self, namespace: str) -> None:
        self.pool.forget("", namespace)

    @invariant()
    def what_is_held_is_what_was_saved(self) -> None:
        if not hasattr(self, "pool"):
            return
        for entries in self.held:
            for entry in entries:
                assert bytes(self.pool.content(entry)) == entry.key[-1:] * 8

    @invariant()
    def every_place_has_one_owner(self) -> None:
        if not hasattr(self, "pool"):
            return
        used = {entry.place for entries in self.held for entry in entries}
        used |= {entry.place for entry in self.pool.to_write}
        used |= {entry.place for entry in self.pool._entries.values()}
        assert sorted([*used, *self.pool._free]) == list(range(len(self.pool.memory)))
        assert set(self.pool._idle) == {key for key, entry in self.pool._entries.items() if not entry.holds}


AnyOrder.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestAnyOrder = AnyOrder.TestCase
