"""Copies pages between the device and host memory, as step plans say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from ....kernels.pages import page_moves
from ...messages import (
    DiscardPages,
    FlushPages,
    ForgetPages,
    RestoredPages,
    SavedPages,
    StepPlan,
)
from .copy_streams import Copies, CopyStream, CudaCopyStream, HostCopyStream
from .host_pool import KEY_BYTES, Entry, split_keys
from .page_store import PageStore
from .restores import HostRestore, Restore, StreamRestore
from .saves import Save, Saves

ID_BYTES = 4
PAGES_AT_ONCE = 8  # in a flush, written while the next ones are copied
FLUSH_TIMEOUT = 5.0  # seconds until a page written to disk frees its place in memory


class CopyStreams(NamedTuple):
    """Copies to host memory and from there do not wait for each other."""

    saving: CopyStream
    restoring: CopyStream | None
    """None: pages are copied in the step that reads them"""


class Transfers:
    """Copies run beside the steps on CUDA, and in order with them on a CPU.

    kvs: each layer's cache (see `kv_pool.allocate_pool`).
    """

    def __init__(
        self, kvs: Sequence[torch.Tensor], store: PageStore, streams: CopyStreams | None = None
    ) -> None:
        """streams: those of the device if None"""
        self._kvs = kvs
        self._store = store
        kv = kvs[0]
        shape = (store.pool.places, len(kvs), kv.shape[0] * kv.shape[1], -1)
        self._memory = store.pool.memory.view(kv.dtype).view(shape)
        self._streams = streams or _streams(kv.device)
        self._saves = Saves(store)

    def warm_up(self) -> None:
        """Compiles the kernels of copies; page 0 keeps its contents."""
        entry = self._store.pool.reserve(bytes(KEY_BYTES))
        if entry is not None:
            moves = page_moves(self._kvs, [0], self._memory, [entry.place])
            self._streams.saving.launch(moves.save, after_steps=True)
            self._streams.saving.launch(lambda: moves.load(range(len(self._kvs)))).wait()
            self._store.pool.release([entry])

    def begin(self, plan: StepPlan, written: Callable[[], Iterable[int]]) -> Restore | None:
        """Launches a step's saves and restores before the step. Its writes wait for the saves of their pages.

        The copies need not wait for the steps before: a page is evicted, and given to another request, only
        when no running step reads or writes it.

        written: the pages that the step writes besides the restored ones
        """
        self.save(plan.saves)
        running = self._saves.running()
        if running:
            for copies in _copies_of(running, set(written())):
                copies.precede_launches()
        return self._restore(plan.restores, running) if plan.restores else None

    def save(self, saves: Sequence[SavedPages], timeout: float = 0.0, after_steps: bool = False) -> None:
        """Copies pages to host memory. A page that gets no place within `timeout` seconds is lost.

        after_steps: running steps may still write some of the pages
        """
        pool = self._store.pool
        for part in saves:
            pages, entries, known = [], [], []
            ids = np.frombuffer(part.pages, np.int32).tolist()
            for page, key in zip(ids, split_keys(part.keys), strict=True):
                there = pool.hold(key)
                if there is not None:
                    known.append(there)
                    continue
                entry = pool.reserve(key, part.namespace, timeout)
                if entry is None:
                    self._store.count_lost(1)
                    continue
                pages.append(page)
                entries.append(entry)
            pool.release(known)  # so that they count as used
            if entries:
                self._launch(pages, entries, after_steps)

    def save_computed(self, saves: Sequence[SavedPages]) -> None:
        """Begins to save pages that no tier has yet, and that the steps launched so far compute."""
        self.save([self._unsaved(part) for part in saves], after_steps=True)

    def _launch(self, pages: list[int], entries: list[Entry], after_steps: bool) -> None:
        moves = page_moves(self._kvs, pages, self._memory, [entry.place for entry in entries])
        copies = self._streams.saving.launch(moves.save, after_steps=after_steps)
        self._saves.add(Save(frozenset(pages), entries, copies))

    def _restore(self, restores: Sequence[RestoredPages], running: Sequence[Save]) -> Restore:
        """Copies fetched pages to the device."""
        pages, places = [], []
        for part in restores:
            ids = np.frombuffer(part.pages, np.int32).tolist()
            pages += ids
            places += self._store.places(part.fetch, part.first, len(ids))
        load, layers = page_moves(self._kvs, pages, self._memory, places).load, len(self._kvs)
        if self._streams.restoring is None:
            return HostRestore(load, layers)
        size = len(pages) * self._memory[0].nbytes
        return StreamRestore(self._streams.restoring, load, layers, size, _copies_of(running, set(pages)))

    @property
    def is_saving(self) -> bool:
        """Whether saves have begun that no step settles."""
        return self._saves.begun

    def saves_copied(self) -> bool:
        """Whether the copies of these saves are complete."""
        return self._saves.copied()

    def begun_saves(self) -> list[Save]:
        """The saves since the last call, for `settle`."""
        return self._saves.take_begun()

    def settle(self, saves: Sequence[Save], fetches_over: Sequence[int] = ()) -> None:
        """After a step: publishes the saved pages and ends these fetches."""
        self._saves.publish(saves)
        for fetch in fetches_over:
            self._store.end(fetch)

    def forget(self, message: ForgetPages | DiscardPages) -> None:
        """Forgets pages in all tiers, and those that are being saved."""
        self._saves.forget(message)
        self._store.forget(message)

    def flush(self, message: FlushPages) -> None:
        """Returns when all pages that fit are in tiers that outlive the process."""
        self.settle(self.begun_saves(), message.fetches_over)
        if not self._store.tiers:
            return
        at_once = max(1, min(PAGES_AT_ONCE, self._store.pool.places // 2))
        self._store.expect([key for part in message.saves for key in split_keys(part.keys)])
        for part in message.saves:
            for few in _pieces(self._unsaved(part), at_once):
                self._store.write_again(split_keys(few.keys))
                self.save([few], timeout=FLUSH_TIMEOUT)
                self.settle(self.begun_saves())
        self._store.finish()

    def _unsaved(self, part: SavedPages) -> SavedPages:
        """The pages that no lower tier has yet."""
        pages = zip(split_keys(part.keys), np.frombuffer(part.pages, np.int32).tolist(), strict=True)
        lacking = [(key, page) for key, page in pages if self._store.tiers.needs(key)]
        ids = np.array([page for _, page in lacking], np.int32)
        return SavedPages(part.namespace, b"".join(key for key, _ in lacking), ids.tobytes())


def _pieces(part: SavedPages, pages: int) -> Iterator[SavedPages]:
    """Splits into parts of at most `pages` pages."""
    for at in range(0, len(part.pages) // ID_BYTES, pages):
        keys = part.keys[at * KEY_BYTES : (at + pages) * KEY_BYTES]
        yield SavedPages(part.namespace, keys, part.pages[at * ID_BYTES : (at + pages) * ID_BYTES])


def _streams(device: torch.device) -> CopyStreams:
    if device.type != "cuda":
        return CopyStreams(HostCopyStream(), None)
    return CopyStreams(CudaCopyStream(device), CudaCopyStream(device))


def _copies_of(saves: Sequence[Save], pages: set[int]) -> list[Copies]:
    """The copies of the saves of any of these pages."""
    return [save.copies for save in saves if not pages.isdisjoint(save.pages)]
