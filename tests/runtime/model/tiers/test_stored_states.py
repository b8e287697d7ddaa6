"""States of recurrent layers in the tiers: found if all their pieces and the pages before are stored."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import torch
from arbora.runtime.messages import (
    CacheDropped,
    DiscardPages,
    FetchPages,
    FlushPages,
    ForgetPages,
    PagesForgotten,
    PagesFound,
    RestoredState,
    SavedPages,
    SavedState,
    SavePages,
    StepPlan,
    UsedPages,
)
from arbora.runtime.model.tiers import page_mover
from arbora.runtime.model.tiers.disk import FILE_NAME
from arbora.runtime.model.tiers.host_pool import list_pieces
from page_world import PAGE_BYTES, World, find_end, key_bytes, packed
from page_world import STATES as STATES_SPEC
from served import eventually

PIECES = 3
STATES = [100, 200, 300]  # keys of the states after the pages with the keys 1, 2, 3


def new_world(directory: Path, places: int = 16, disk: bool = False) -> World:
    world = World(directory, places, disk, states=4)
    for number, tensor in enumerate(world.states.tensors):
        tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(number)))
    assert world.store.pieces == [1, PIECES]
    return world


def make_saves(*states: int, namespace: str = "") -> list[SavedState]:
    """States in the places 0, 1, 2."""
    return [SavedState(namespace, key_bytes([state]), STATES.index(state)) for state in states]


def save(world: World, *states: int, pages: list[int]) -> None:
    world.mover.save([SavedPages("", key_bytes(pages), packed(pages))])
    world.mover.save_states(make_saves(*states))
    world.mover.publish_saves()


def find(world: World, keys: list[int], states: list[int], fetch: int = 1) -> PagesFound:
    return find_end(world, keys, [(states, [1] * len(states))], fetch)


def restore(world: World, place: int, fetch: int = 1) -> None:
    world.outbox.send(FetchPages(fetch))
    assert world.fetched()[0] == fetch
    plan = StepPlan(1, [], restored_states=[RestoredState(fetch, place)], fetches_over=[fetch])
    world.mover.finish(world.mover.begin(plan, list))


def check_equal(world: World, place: int, source: int, other: World | None = None) -> None:
    for ours, theirs in zip(world.states.tensors, (other or world).states.tensors, strict=True):
        assert torch.equal(ours[place], theirs[source])


def test_the_last_state_whose_pages_are_stored_is_found_and_restored(tmp_path: Path) -> None:
    world = new_world(tmp_path)
    save(world, 100, 200, 300, pages=[1, 2])
    assert find(world, [1, 2, 3], STATES) == PagesFound(1, 2 + PIECES, 2)
    restore(world, place=3)
    check_equal(world, 3, STATES.index(200))


def test_a_state_is_found_before_the_first_asked_page(tmp_path: Path) -> None:
    world = new_world(tmp_path)
    save(world, 100, pages=[])
    assert find(world, [3], STATES) == PagesFound(1, PIECES, -1)
    restore(world, place=3)
    check_equal(world, 3, 0)


def test_a_state_that_lacks_a_piece_is_not_found(tmp_path: Path) -> None:
    world = new_world(tmp_path)
    save(world, 100, 300, pages=[1, 2, 3])
    world.store.pool.discard([list_pieces(key_bytes([300]), PIECES)[-1]])
    assert find(world, [1, 2, 3], STATES) == PagesFound(1, 1 + PIECES, 1)
    world.store.pool.discard([key_bytes([100])])
    assert find(world, [1, 2, 3], STATES, fetch=2) == PagesFound(2, 0)


def test_a_state_without_enough_free_places_is_lost(tmp_path: Path) -> None:
    world = new_world(tmp_path, places=5)
    save(world, 100, pages=[1])
    assert find(world, [1], [100]) == PagesFound(1, 1 + PIECES, 1)
    world.outbox.send(FetchPages(1))
    world.fetched()  # holds four places
    save(world, pages=[9])
    save(world, 200, pages=[])
    world.wait_for_counts(lost_pages=PIECES)
    assert key_bytes([9]) in world.store.pool  # it is not evicted in vain
    assert find(world, [1, 2], [100, 200], fetch=2) == PagesFound(2, 1 + PIECES, 1)


@pytest.mark.parametrize("how", ["evicted", "computed", "at the end"])
def test_states_outlive_the_server(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_mover, "PAGES_AT_ONCE", 2)
    world = new_world(tmp_path, places=6, disk=True)
    pages = [SavedPages("", key_bytes([1, 2]), packed([1, 2]))]
    if how == "evicted":
        plan = StepPlan(1, [], saves=pages, saved_states=make_saves(200))
        world.mover.finish(world.mover.begin(plan, list))
        world.store.finish()
    elif how == "computed":
        world.mover.handle(SavePages(pages, make_saves(200)))
        world.mover.publish_saves()
        world.store.finish()
    else:
        world.mover.flush(FlushPages(pages, [], make_saves(100, 200, 300)))
    (tmp_path / "second").mkdir()
    other = World(tmp_path / "second", 8, disk=False, states=4)
    other.store.tiers.disk = world.store.tiers.disk
    assert find(other, [1, 2], STATES[:2]) == PagesFound(1, 2 + PIECES, 2)
    restore(other, place=3)
    check_equal(other, 3, STATES.index(200), world)


def test_states_are_forgotten_with_their_namespace_and_discarded_by_their_keys(tmp_path: Path) -> None:
    world = new_world(tmp_path)
    save(world, 100, 200, pages=[1, 2])
    world.mover.handle(DiscardPages("", b"", [key_bytes([200])]))
    eventually(lambda: find(world, [1, 2], STATES[:2]).end == 1)
    world.mover.handle(ForgetPages("", "", 0, CacheDropped(0, 0, 0)))
    while not isinstance(world.receive(), PagesForgotten):
        pass
    assert find(world, [1, 2], STATES[:2], fetch=2) == PagesFound(2, 0)


def test_no_piece_of_a_discarded_state_becomes_a_part_of_the_next_one(tmp_path: Path) -> None:
    world = new_world(tmp_path)
    save(world, 100, pages=[1])
    world.mover.handle(DiscardPages("", b"", [key_bytes([100])]))
    eventually(lambda: len(world.store.pool) == 1)
    for tensor in world.states.tensors:
        tensor[0] += 1
    save(world, 100, pages=[])
    assert find(world, [1], STATES[:1]) == PagesFound(1, 1 + PIECES, 1)
    restore(world, place=3)
    check_equal(world, 3, 0)


def test_the_rest_of_the_last_piece_has_nothing_of_another_page(tmp_path: Path) -> None:
    world = new_world(tmp_path)
    world.store.pool.memory.fill_(7)
    save(world, 100, pages=[])
    last = world.store.pool.hold(list_pieces(key_bytes([100]), PIECES)[-1])
    assert last is not None
    rest = world.store.pool.memory[last.place, STATES_SPEC.state_bytes(torch.float32) % PAGE_BYTES :]
    assert len(rest) and not rest.any()


def test_a_computed_state_is_saved_if_the_disk_has_lost_a_piece(tmp_path: Path) -> None:
    world = new_world(tmp_path, disk=True)
    message = SavePages([SavedPages("", key_bytes([1]), packed([1]))], make_saves(100))
    world.mover.handle(message)
    world.mover.publish_saves()
    world.store.finish()
    world.mover.handle(DiscardPages("", list_pieces(key_bytes([100]), PIECES)[-1]))
    eventually(lambda: len(world.store.tiers.on_disk) == PIECES)
    world.mover.handle(message)
    world.mover.publish_saves()
    assert find(world, [1], STATES[:1]) == PagesFound(1, 1 + PIECES, 1)


def test_a_state_that_does_not_fit_into_host_memory_with_its_pages_is_not_found(tmp_path: Path) -> None:
    world = new_world(tmp_path, places=5, disk=True)
    for states, pages in ([100], [1]), ([300], [2, 3]):
        save(world, *states, pages=pages)
        world.store.finish()
    assert find(world, [1, 2, 3], STATES) == PagesFound(1, 1 + PIECES, 1)


def test_a_state_counts_as_used_with_its_pages(tmp_path: Path) -> None:
    world = new_world(tmp_path, disk=True)
    for keys, states in (([1], [100]), ([9], [])):
        world.mover.save_computed(
            SavePages([SavedPages("", key_bytes(keys), packed(keys))], make_saves(*states))
        )
        world.mover.publish_saves()
        world.store.finish()
    world.outbox.send(UsedPages(key_bytes([1, 2]), [key_bytes([100, 200])]))

    def oldest() -> int:
        with sqlite3.connect(tmp_path / FILE_NAME) as database:
            [(key,)] = database.execute("SELECT key FROM pages ORDER BY used LIMIT 1").fetchall()
        return int.from_bytes(key, "big")

    eventually(lambda: oldest() == 9)
