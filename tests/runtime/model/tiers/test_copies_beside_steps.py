"""Copies beside steps: whatever the device does first, no page is lost, torn or restored too late."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

import pytest
import torch
from arbora.runtime.messages import (
    CacheDropped,
    DiscardPages,
    ForgetPages,
    RestoredPages,
    SavedPages,
    StepPlan,
)
from arbora.runtime.model.tiers import copies
from arbora.runtime.model.tiers.copies import Copies
from arbora.runtime.model.tiers.fetches import _Fetch
from arbora.runtime.model.tiers.host_memory import HostMemory
from arbora.runtime.model.tiers.host_pool import Entry, HostPool
from arbora.runtime.model.tiers.lower_tiers import LowerTiers
from arbora.runtime.model.tiers.page_mover import CopyStreams, PageMover, StepMoves
from arbora.runtime.model.tiers.page_store import PageStore
from page_world import key_bytes, packed

PAGES, PLACES, LAYERS = 8, 6, 2
PAGE_BYTES = LAYERS * 2 * 2 * 4


@dataclass(eq=False)
class Work:
    run: Callable[[], None]
    after: list[Work]
    done: bool = False


class LazyDevice:
    """Steps have a stream of their own."""

    def __init__(self) -> None:
        self._all: list[Work] = []
        self.steps = LazyStream(self)

    def add(self, work: Work) -> Work:
        self._all.append(work)
        return work

    def finish(self, work: Work) -> None:
        """Runs work, and before it only the work that must come first."""
        if not work.done:
            for earlier in work.after:
                self.finish(earlier)
            work.run()
            work.done = True

    def advance(self, random: Random) -> None:
        """Runs any work that may be the next."""
        ready = [work for work in self._all if not work.done and all(earlier.done for earlier in work.after)]
        if ready:
            self.finish(random.choice(ready))


class LazyStream:
    """See `CopyStream`."""

    def __init__(self, device: LazyDevice) -> None:
        self._device = device
        self._last: list[Work] = []
        self.precedents: list[Work] = []  # of the next launch

    def launch(
        self, copy: Callable[[], None], after: Sequence[Copies] = (), after_steps: bool = False
    ) -> LazyCopies:
        first = [copies.work for copies in after if isinstance(copies, LazyCopies)]
        steps = self._device.steps._last if after_steps else []
        work = self._device.add(Work(copy, [*self._last, *self.precedents, *first, *steps]))
        self._last, self.precedents = [work], []
        return LazyCopies(self._device, work)


class LazyCopies:
    """See `Copies`. The current stream is that of the steps."""

    def __init__(self, device: LazyDevice, work: Work) -> None:
        self._device, self.work = device, work

    def ready(self) -> bool:
        return self.work.done

    def wait(self) -> None:
        self._device.finish(self.work)

    def precede_launches(self) -> None:
        self._device.steps.precedents.append(self.work)

    def ms_since(self, earlier: Copies) -> float:
        return 1.0


@dataclass
class Step:
    moves: StepMoves
    pages: set[int]
    """that it reads or writes"""
    computed: LazyCopies | None = None


class Machine:
    """A scheduler's rules for pages, without its policy. The content of a page is its key, a number."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.device = LazyDevice()
        self.kvs = [torch.zeros(2, 1, PAGES, 1, 2) for _ in range(LAYERS)]
        self.pool = HostPool(HostMemory(PLACES * PAGE_BYTES, pinned=False), PAGE_BYTES)
        self.store = PageStore(self.pool, LowerTiers(None, None))
        streams = CopyStreams(LazyStream(self.device), LazyStream(self.device))
        self.mover = PageMover(self.kvs, self.store, streams)
        self.keys = dict.fromkeys(range(PAGES), 0)  # by page; 0: free
        self.forgotten: set[int] = set()
        self.flight: list[Step] = []
        self.last = 0

    def run(self, turns: int) -> None:
        for _ in range(turns):
            self.random.choice([self.plan, self.finish, self.save, self.forget, self.advance])()
            self.check()
        while self.flight:
            self.finish()
        self.mover.publish_saves()
        self.check()
        assert not self.mover._open
        assert len(self.pool._free) + len(self.pool._entries) == PLACES

    def plan(self) -> None:
        """Evicts pages and overwrites some of them, restores a page, and reads others."""
        if len(self.flight) == 2:
            return
        busy = set().union(*(step.pages for step in self.flight))
        idle = [page for page in range(PAGES) if page not in busy]
        chosen = self.random.sample(idle, min(len(idle), 3))
        saves = [self._saved(page) for page in chosen if self.keys[page]]
        restores, fetch = self._fetch(chosen[:1])
        written = chosen[len(restores) : self.random.randint(1, 2)]
        for page in chosen:
            self.keys[page] = 0
        for page in written:
            self.last += 1
            self.keys[page] = self.last
        if restores:
            self.keys[chosen[0]] = fetch
        kept = [page for page in range(PAGES) if self.keys[page] and page not in written]
        reads = [*self.random.sample(kept, min(len(kept), 2)), *chosen[: len(restores)]]
        plan = StepPlan(1, [], saves=saves, restores=restores, fetches_over=[fetch] if fetch else [])
        step = Step(self.mover.begin(plan, lambda: [(0, page) for page in written]), {*reads, *chosen})
        restore = step.moves.restore
        self.flight.append(step)
        if written or self.random.random() < 0.5:
            if restore is not None and not restore.arrive_at_once():
                for layer in range(LAYERS):
                    restore.arrive(layer)
            expected = {page: self.keys[page] for page in reads}
            new = {page: self.keys[page] for page in written}
            step.computed = self.device.steps.launch(partial(self._compute, expected, new))
        else:  # a step without rows is over before the next one is launched
            while self.flight:
                self.finish()

    def finish(self) -> None:
        if self.flight:
            step = self.flight.pop(0)
            if step.computed is not None:
                step.computed.wait()
            self.mover.finish(step.moves)

    def save(self) -> None:
        """Saves pages that running steps may still compute."""
        kept = [page for page in range(PAGES) if self.keys[page]]
        if kept:
            self.mover.save([self._saved(self.random.choice(kept))], after_steps=True)

    def forget(self) -> None:
        """Forgets the odd keys, or one key."""
        if self.random.random() < 0.5:
            self.mover.forget(ForgetPages("", "odd", 0, CacheDropped(0, 0, 0)))
            self.pool.forget("", "odd")
            self._drop(set(range(1, self.last + 1, 2)))
        elif self.last:
            key = self.random.randint(1, self.last)
            self.mover.forget(DiscardPages("", key_bytes([key])))
            self.pool.discard([key_bytes([key])])
            self._drop({key})

    def advance(self) -> None:
        self.device.advance(self.random)

    def check(self) -> None:
        """The store finds only whole pages that were not forgotten."""
        for key, entry in self.pool._entries.items():
            number = int.from_bytes(key, "big")
            assert number not in self.forgotten
            content = self.pool.memory[entry.place].view(torch.float32)
            assert (content == number).all(), (number, content)

    def _drop(self, keys: set[int]) -> None:
        self.forgotten |= keys
        for page, key in self.keys.items():
            if key in keys:
                self.keys[page] = 0

    def _fetch(self, pages: list[int]) -> tuple[list[RestoredPages], int]:
        """Restores a stored page into the first of `pages`; the fetch has the number of its key."""
        stored = [key for key in self.pool._idle if int.from_bytes(key, "big") not in self.keys.values()]
        if not stored or not pages or self.random.random() < 0.3:
            return [], 0
        entry = self.pool.hold(self.random.choice(stored))
        assert isinstance(entry, Entry)
        number = int.from_bytes(entry.key, "big")
        self.store._fetches._ready[number] = _Fetch(number, "", [entry.key], entries=[entry])
        return [RestoredPages(number, 0, packed(pages))], number

    def _saved(self, page: int) -> SavedPages:
        key = self.keys[page]
        return SavedPages("odd" if key % 2 else "even", key_bytes([key]), packed([page]))

    def _compute(self, expected: dict[int, int], new: dict[int, int]) -> None:
        for kv in self.kvs:
            for page, key in expected.items():
                assert (kv[:, :, page] == key).all(), (page, key, kv[:, :, page])
            for page, key in new.items():
                kv[:, :, page] = key


@pytest.mark.parametrize("small", [0, copies.MAX_AT_ONCE], ids=["layer by layer", "at once"])
def test_pages_are_whole_in_any_order_that_the_streams_allow(
    small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "MAX_AT_ONCE", small)
    for seed in range(40):
        Machine(seed).run(turns=60)


def test_a_step_without_rows_is_over_when_its_windowed_pages_are_restored() -> None:
    machine = Machine(0)
    store = PageStore(machine.pool, LowerTiers(None, None), (1, 1))
    streams = CopyStreams(LazyStream(machine.device), LazyStream(machine.device))
    shape = (2, 1, PAGES, 1, 2)
    kvs = [torch.zeros(shape) for _ in range(2 * LAYERS)]
    mover = PageMover(kvs, store, streams, groups=[(0, 1), (2, 3)])
    entries = [machine.pool.reserve(key_bytes([key])) for key in (5, 6)]
    fetched = [entry for entry in entries if entry is not None]
    for entry in fetched:
        machine.pool.memory[entry.place].view(torch.float32).fill_(int.from_bytes(entry.key, "big"))
    keys = [entry.key for entry in fetched]
    store._fetches._ready[1] = _Fetch(1, "", keys, starts=[0, 1], entries=fetched)
    restores = [RestoredPages(1, 0, packed([3])), RestoredPages(1, 0, packed([4]), group=1)]
    mover.finish(mover.begin(StepPlan(1, [], restores=restores, fetches_over=[1]), list))
    assert (kvs[0][:, :, 3] == 5).all()
    assert (kvs[3][:, :, 4] == 6).all()  # its place in host memory may be used again


def test_warming_up_changes_no_page_and_keeps_no_place() -> None:
    machine = Machine(0)
    for kv in machine.kvs:
        kv.uniform_()
    before = [kv.clone() for kv in machine.kvs]
    machine.mover.warm_up()
    assert all(torch.equal(kv, old) for kv, old in zip(machine.kvs, before, strict=True))
    assert len(machine.pool._free) == PLACES
