"""Host memory for a GPU becomes usable piece by piece, beside the loading of the model."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch
from arbora.runtime.model.tiers import host_memory
from arbora.runtime.model.tiers.host_memory import HostMemory
from arbora.runtime.model.tiers.host_pool import HostPool

PIECE, PIECES = 1 << 16, 3
PAGE = 3 << 14
"""bytes: pages cross the pieces' borders"""


class Driver:
    """Pins a piece for each `allow`, in the place of CUDA's driver."""

    def __init__(self) -> None:
        self.pinned: list[int] = []
        self.fails = False
        self.seconds = 0.0
        self._allowed = threading.Semaphore(0)

    def allow(self, pieces: int) -> None:
        for _ in range(pieces):
            self._allowed.release()

    def pin(self, memory: torch.Tensor) -> None:
        assert self._allowed.acquire(timeout=60)
        time.sleep(self.seconds)
        if self.fails:
            raise RuntimeError("no more pages")
        self.pinned.append(memory.nbytes)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    driver = Driver()
    monkeypatch.setattr(host_memory, "PIECE", PIECE)
    monkeypatch.setattr(host_memory, "pin", driver.pin)
    yield driver
    driver.allow(PIECES)  # ends the thread


def places_of(pool: HostPool, places: int) -> bool:
    """Whether exactly so many places become free."""
    entries = [pool.reserve(bytes([number] * 16), timeout=60) for number in range(places)]
    return all(entries) and pool.reserve(b"more") is None


def wait_until(condition: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(6000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it took too long")


def test_memory_that_need_not_be_pinned_is_usable_at_once() -> None:
    pool = HostPool(HostMemory(4 * PAGE, pinned=False), PAGE)
    assert places_of(pool, 4)
    assert not pool.memory.any()


def test_a_place_is_used_once_all_of_its_memory_is_pinned(driver: Driver) -> None:
    driver.allow(1)
    pool = HostPool(HostMemory(4 * PAGE, pinned=True), PAGE)
    assert pool.places == 4
    assert places_of(pool, 1)
    driver.allow(PIECES - 1)
    assert places_of(pool, 3)
    assert driver.pinned == [PIECE] * PIECES


def test_memory_of_which_nothing_can_be_pinned_is_an_error(driver: Driver) -> None:
    driver.fails = True
    driver.allow(1)
    with pytest.raises(RuntimeError, match="no more pages"):
        HostPool(HostMemory(4 * PAGE, pinned=True), PAGE)


def test_a_server_keeps_the_memory_that_was_pinned_before_an_error(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    driver.allow(2)
    pool = HostPool(HostMemory(4 * PAGE, pinned=True), PAGE)
    assert places_of(pool, 2)
    driver.fails = True
    with caplog.at_level(logging.INFO):
        driver.allow(1)
        wait_until(lambda: "pinned 128KiB of host memory in" in caplog.text)
    assert "the host cache has 128KiB of 192KiB, as no more can be pinned: no more pages" in caplog.text
    assert pool.reserve(b"more") is None


def test_nothing_is_pinned_while_the_devices_memory_is_measured(driver: Driver) -> None:
    pieces = 100
    driver.allow(pieces)
    driver.seconds = 0.003
    memory = HostMemory(pieces * PIECE, pinned=True)
    with memory.undisturbed():
        before = len(driver.pinned)
        threading.Event().wait(0.05)
        assert len(driver.pinned) == before < pieces
    wait_until(lambda: len(driver.pinned) == pieces)
