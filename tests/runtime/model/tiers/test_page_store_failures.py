"""Removed pages are not found again, and the page store works without a failing disk."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from arbora.runtime.messages import (
    CacheDropped,
    DiscardPages,
    ForgetPages,
    PagesForgotten,
)
from arbora.runtime.model.tiers import disk, lower_tiers, open_page_store
from arbora.runtime.model.tiers.disk import FILE_NAME, DiskStore, StoredPage
from arbora.runtime.model.tiers.lower_tiers import LowerTiers
from page_world import PAGE_BYTES, World, key_bytes
from served import eventually
from step_driver import serve_config


@pytest.fixture(params=[False, True], ids=["memory", "disk"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[World]:
    yield World(tmp_path, places=8, disk=request.param)


def test_pages_that_may_be_wrong_are_given_up(world: World) -> None:
    world.save([1, 2, 3], [1, 2, 3])
    world.store.finish()
    world.mover.forget(DiscardPages("", key_bytes([2, 3, 4])))
    world.wait_for_counts(host_pages=1)
    assert world.fetch([1, 2])[1] == 1
    assert world.fetch([3])[1] == 0


def test_a_namespace_is_forgotten_in_memory_and_on_disk(world: World) -> None:
    world.save([1], [1], "ann/")
    world.save([2], [2], "bob/")
    world.wait_for_counts(host_pages=2)
    world.mover.forget(ForgetPages("ann/", None, 0, CacheDropped(7, 3, 48)))
    while not isinstance(message := world.receive(), PagesForgotten):
        pass
    on_disk = int(world.store.tiers.disk is not None)
    assert message == PagesForgotten(0, CacheDropped(7, 3, 48, host_pages=1, disk_pages=on_disk))
    assert world.fetch([1], "ann/")[1] == 0
    assert world.fetch([2], "bob/")[1] == 1


def test_fetches_are_answered_while_forgotten_pages_are_erased(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, places=8, disk=True)
    disk = world.store.tiers.disk
    assert disk is not None
    erase, answered = disk.erase, list[int]()
    monkeypatch.setattr(disk, "erase", lambda: erase() or not answered)
    world.save([1], [1], "ann/")
    world.save([2], [2], "bob/")
    world.store.finish()
    world.mover.forget(ForgetPages("ann/", None, 0, CacheDropped(7, 3, 48)))
    world.wait_for_counts(host_pages=1, disk_pages=1)
    answered += world.fetch([2], "bob/")
    while not isinstance(message := world.receive(), PagesForgotten):
        pass
    assert (answered[1], message.dropped.disk_pages) == (1, 1)


def fail(*_: object) -> None:
    raise sqlite3.OperationalError("disk I/O error")


def test_the_answer_to_a_drop_says_that_the_disk_failed_and_may_still_have_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, places=8, disk=True)
    world.save([1], [1], "ann/")
    world.store.finish()

    def forget() -> CacheDropped:
        world.mover.forget(ForgetPages("ann/", None, 0, CacheDropped(7, 3, 48)))
        while not isinstance(message := world.receive(), PagesForgotten):
            pass
        return message.dropped

    assert world.store.tiers.disk is not None
    monkeypatch.setattr(world.store.tiers.disk, "erase", fail)
    monkeypatch.setattr(disk, "RETRY_SECONDS", 0.0)
    with contextlib.closing(sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)) as other:
        assert forget() == CacheDropped(7, 3, 48, host_pages=1, disk_pages=None)
        other.execute("BEGIN EXCLUSIVE")
        assert forget() == CacheDropped(7, 3, 48, host_pages=0, disk_pages=None)
    assert forget() == CacheDropped(7, 3, 48, host_pages=0, disk_pages=1)


def test_held_pages_of_a_forgotten_namespace_stay_whole_until_they_are_released(world: World) -> None:
    expected = world.content(1)
    world.save([1], [1], "ann/")
    fetch, _ = world.fetch([1])
    world.wait_for_counts(host_pages=1)
    world.mover.forget(ForgetPages("ann/", "ann/", 0, CacheDropped(1, 0, 0)))
    world.wait_for_counts(host_pages=0)
    world.save([10, 11, 12, 13, 14, 15, 16], [10, 11, 12, 13, 14, 15, 16])
    world.restore(fetch, 0, [5])
    assert torch.equal(world.content(5), expected)
    assert world.fetch([1])[1] == 0


def test_a_disk_that_fails_is_suspended_and_memory_keeps_working(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, places=4, disk=True)
    assert world.store.tiers.disk is not None
    world.store.tiers.disk._database.close()
    world.save([1, 2], [1, 2])
    world.store.finish()
    assert world.fetch([1, 2])[1] == 2
    assert "is not used for 30 s" in caplog.text


def test_a_disk_that_fails_between_two_pages_is_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, places=4, disk=True)
    assert world.store.tiers.disk is not None
    world.store.tiers.disk._database.close()
    assert world.fetch([1])[1] == 0
    world.save([1], [1])
    world.store.finish()
    assert world.fetch([1])[1] == 1
    assert "is not used for 30 s" in caplog.text


def test_a_disk_that_failed_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lower_tiers, "SILENCE_SECONDS", 0.0)
    for name in ("BUSY_SECONDS", "RETRY_SECONDS"):
        monkeypatch.setattr(disk, name, 0.0)
    world = World(tmp_path, places=1, disk=True)
    expected = world.content(1)
    for key in (1, 2):
        world.save([key], [key], "ann/")
        world.store.finish()
    assert world.store.tiers.disk is not None
    monkeypatch.setattr(world.store.tiers.disk, "read", fail)
    with contextlib.closing(sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert world.fetch([1], "ann/")[1] == 0
    eventually(lambda: world.find([1], "ann/")[1] == 1)
    fetch, _ = world.fetch([1], "ann/")
    world.restore(fetch, 0, [5])
    assert torch.equal(world.content(5), expected)
    world.mover.forget(ForgetPages("ann/", None, 0, CacheDropped(7, 3, 48)))
    while not isinstance(message := world.receive(), PagesForgotten):
        pass
    assert message.dropped.disk_pages == 2


def test_a_file_that_is_no_page_store_is_left_alone_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE_NAME).write_text("Dear diary, " * 500)
    config = serve_config(tmp_path, disk_cache=tmp_path)
    assert open_page_store(config, PAGE_BYTES, torch.device("cpu")) is None
    assert (
        f"--disk-cache {tmp_path} is not used: {tmp_path / FILE_NAME} is no page store that can be read "
        "(file is not a database): move it away or choose another directory"
    ) in caplog.text
    assert (tmp_path / FILE_NAME).read_text() == "Dear diary, " * 500


def test_a_directory_that_can_not_be_made_is_done_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    config = serve_config(tmp_path, disk_cache=tmp_path / "file" / "cache")
    assert open_page_store(config, PAGE_BYTES, torch.device("cpu")) is None
    assert "it can't be made or written (Not a directory): choose another directory" in caplog.text


@pytest.mark.parametrize("is_left", [False, True])
def test_pages_that_a_failing_disk_could_not_discard_are_not_found_when_it_is_reopened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_left: bool
) -> None:
    failing = DiskStore(tmp_path, 1 << 24)
    failing.write([StoredPage(bytes([number] * 16), "", memoryview(bytes(100))) for number in (1, 2)])
    tiers = LowerTiers(failing, None)
    monkeypatch.setattr(failing, "discard", fail)
    error = sqlite3.OperationalError("disk I/O error")
    if is_left:
        tiers.suspend_disk(error)
        tiers.discard("", [bytes([1] * 16)])
    else:
        with pytest.raises(sqlite3.Error):
            tiers.discard("", [bytes([1] * 16)])
        tiers.suspend_disk(error)
    tiers.try_disk_again(insist=True)
    assert tiers.disk is not None
    assert tiers.disk.keys == {bytes([2] * 16)}
