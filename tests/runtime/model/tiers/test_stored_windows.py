"""Pages of windowed groups in the tiers: found if all that an end needs are stored, with all their pieces."""

from __future__ import annotations

from pathlib import Path

import torch
from arbora.runtime.messages import (
    DiscardPages,
    FetchPages,
    FlushPages,
    PagesFound,
    RestoredPages,
    SavedPages,
    SavePages,
    StepPlan,
)
from arbora.runtime.model.tiers.host_pool import list_pieces
from page_world import PAGE_BYTES, World, find_end, key_bytes, packed
from served import eventually

GROUPS = [(0, 3, 6), (1, 2, 4, 5, 7)]
PIECES = 2
HERE = 0
"""the key of a page that is in the KV cache"""
PAGES = [1, 2, 3, 4]
WINDOWS = [1010, 1020, 1030, 1040]


def new_world(directory: Path, places: int = 32, disk: bool = False) -> World:
    return World(directory, places, disk, groups=GROUPS)


def saves(keys: list[int], windows: list[int]) -> list[SavedPages]:
    """A page has its key's number, and the windowed page with the key 1010 has the number 1."""
    pages = [window % 1000 // 10 for window in windows]
    return [
        SavedPages("", key_bytes(keys), packed(keys)),
        SavedPages("", key_bytes(windows), packed(pages), group=1),
    ]


def save(world: World, keys: list[int], windows: list[int]) -> None:
    world.mover.save(saves(keys, windows))
    world.mover.publish_saves()


def restore(world: World, *parts: RestoredPages) -> None:
    world.outbox.send(FetchPages(1))
    world.fetched()
    moves = world.mover.begin(StepPlan(1, [], restores=list(parts), fetches_over=[1]), list)
    world.mover.finish(moves)


def content(world: World, group: int, page: int) -> torch.Tensor:
    return torch.stack([world.kvs[layer][:, :, page] for layer in GROUPS[group]])


def test_pages_of_both_groups_are_restored_to_their_layers_alone(tmp_path: Path) -> None:
    world = new_world(tmp_path)
    save(world, PAGES[:3], WINDOWS[:3])
    kept = [(group, page, content(world, group, page).clone()) for group in (0, 1) for page in (1, 2, 3)]
    untouched = [kv.clone() for kv in world.kvs]
    assert find_end(world, PAGES, [(WINDOWS, [1, 2, 2, 2])]) == PagesFound(1, 3 + 2 * PIECES, 3)
    restore(
        world,
        RestoredPages(1, 0, packed([11, 12, 13])),
        RestoredPages(1, 0, packed([22]), group=1),
        RestoredPages(1, 1, packed([23]), group=1),
    )
    for group, page, tensor in kept:
        if (group, page) != (1, 1):
            assert torch.equal(content(world, group, page + (20 if group else 10)), tensor)
    for layer, kv in enumerate(untouched):
        restored = [11, 12, 13] if layer in GROUPS[0] else [22, 23]
        others = [page for page in range(kv.shape[2]) if page not in restored]
        assert torch.equal(kv[:, :, others], world.kvs[layer][:, :, others])


def test_an_end_before_the_first_asked_page_needs_only_windowed_pages(tmp_path: Path) -> None:
    world = new_world(tmp_path)
    save(world, [], [1020])
    found = find_end(world, [4], [([1010, 1020, HERE, 1040], [1, 2, 2])])
    assert found == PagesFound(1, PIECES, 0)
    assert find_end(world, [4], [([1010, 1020, HERE, 1040], [1, 3, 3])], fetch=2) == PagesFound(2, PIECES, -1)


def test_an_end_that_lacks_one_piece_of_a_page_is_not_found(tmp_path: Path) -> None:
    world = new_world(tmp_path)
    save(world, PAGES, WINDOWS)
    world.store.pool.discard([list_pieces(key_bytes([1040]), PIECES)[-1]])
    needs = [(WINDOWS, [1, 2, 2, 2])]
    assert find_end(world, PAGES, needs) == PagesFound(1, 3 + 2 * PIECES, 3)
    world.store.pool.discard([key_bytes([1020])])
    assert find_end(world, PAGES, needs, fetch=2) == PagesFound(2, 1 + PIECES, 1)
    world.store.pool.discard([key_bytes([1])])
    assert find_end(world, PAGES, needs, fetch=3) == PagesFound(3, 0)


def test_an_end_of_a_chunk_needs_no_page_of_the_group(tmp_path: Path) -> None:
    world = new_world(tmp_path)
    save(world, PAGES[:2], [])
    assert find_end(world, PAGES, [([1030, 1040], [0, 1, 2])]) == PagesFound(1, 2, 2)


def test_the_end_that_all_groups_can_serve_is_found(tmp_path: Path) -> None:
    world = World(tmp_path, 32, disk=False, groups=[*GROUPS, (8,)])
    third = SavedPages("", key_bytes([2010, 2020]), packed([1, 2]), group=2)
    world.mover.save([*saves(PAGES, WINDOWS), third])
    world.mover.publish_saves()
    second = ([2010, 2020, 2030, 2040], [1, 1, 1, 1])
    assert find_end(world, PAGES, [(WINDOWS, [1, 2, 3, 3]), second]) == PagesFound(1, 2 + 2 * PIECES + 1, 2)


def test_an_end_that_does_not_fit_into_host_memory_is_not_found(tmp_path: Path) -> None:
    world = new_world(tmp_path, places=6, disk=True)
    for keys, windows in (([1, 2], [1010]), ([], [1020]), ([3], [1030])):
        save(world, keys, windows)
        world.store.finish()
    assert find_end(world, PAGES, [(WINDOWS, [1, 2, 2, 2])]) == PagesFound(1, 2 + 2 * PIECES, 2)


def test_windowed_pages_outlive_the_server(tmp_path: Path) -> None:
    world = new_world(tmp_path, places=6, disk=True)
    world.mover.flush(FlushPages(saves(PAGES, WINDOWS)))
    (tmp_path / "second").mkdir()
    other = new_world(tmp_path / "second")
    other.store.tiers.disk = world.store.tiers.disk
    assert find_end(other, PAGES, [(WINDOWS, [1, 2, 2, 2])]) == PagesFound(1, 4 + 2 * PIECES, 4)
    restore(other, RestoredPages(1, 0, packed([7, 8]), group=1))
    assert torch.equal(content(other, 1, 7), content(world, 1, 3))
    assert torch.equal(content(other, 1, 8), content(world, 1, 4))


def test_the_rest_of_the_last_piece_has_nothing_of_another_page(tmp_path: Path) -> None:
    world = new_world(tmp_path)
    world.store.pool.memory.fill_(7)
    save(world, [], [1010])
    last = world.store.pool.hold(list_pieces(key_bytes([1010]), PIECES)[-1])
    assert last is not None
    rest = world.store.pool.memory[last.place, PAGE_BYTES * 2 // 3 :]
    assert len(rest) and not rest.any()


def test_a_discarded_page_loses_all_pieces_and_a_computed_one_gets_those_that_the_disk_lacks(
    tmp_path: Path,
) -> None:
    world = new_world(tmp_path, disk=True)
    message = SavePages(saves([1], [1010]))
    world.mover.handle(message)
    world.mover.publish_saves()
    world.store.finish()
    world.mover.handle(DiscardPages("", list_pieces(key_bytes([1010]), PIECES)[-1]))
    eventually(lambda: len(world.store.tiers.on_disk) == 1 + PIECES - 1)
    world.mover.handle(message)
    world.mover.publish_saves()
    world.store.finish()
    assert find_end(world, [1], [([1010], [1])]) == PagesFound(1, 1 + PIECES, 1)
    world.mover.handle(DiscardPages("", b"", [key_bytes([1010])]))
    eventually(lambda: len(world.store.tiers.on_disk) == 1)
    assert find_end(world, [1], [([1010], [1])], fetch=2) == PagesFound(2, 0)
