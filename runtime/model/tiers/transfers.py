"""Copies pages between the device and host memory, as step plans say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from ....kernels.pages import load_pages, save_pages
from ...messages import DiscardPages, FlushPages, ForgetPages, RestoredPages, SavedPages
from .host_pool import KEY_BYTES, Entry, split_keys
from .page_store import PageStore
from .restores import HostRestore, Restore, StreamRestore

ID_BYTES = 4
PAGES_AT_ONCE = 8  # in a flush, written while the next ones are copied
FLUSH_TIMEOUT = 5.0  # seconds until a page written to disk frees its place in memory


@dataclass(frozen=True)
class Saves:
    """Pages whose copies to host memory have been launched."""

    entries: list[list[Entry]] = field(default_factory=list)
    copied: list[torch.cuda.Event] = field(default_factory=list)
    """recorded after the copies, on CUDA"""


class Transfers:
    """Copies run in order with the steps; on CUDA they overlap with them, layer by layer.

    kvs: one [2, kv_heads, num_pages, page_size, cell] tensor for each layer.
    """

    def __init__(self, kvs: Sequence[torch.Tensor], store: PageStore) -> None:
        self._kvs = kvs
        self._store = store
        kv = kvs[0]
        shape = (-1, len(kvs), kv.shape[0] * kv.shape[1], kv.shape[3] * kv.shape[4])
        self._memory = store.pool.memory.view(kv.dtype).view(shape)
        self._stream: torch.cuda.Stream | None = (
            torch.cuda.Stream(kv.device) if kv.is_cuda else None  # type: ignore[no-untyped-call]
        )
        self._saves = Saves()

    def save(self, saves: Sequence[SavedPages], timeout: float = 0.0) -> None:
        """Copies pages to host memory. A page that gets no place within `timeout` seconds is lost."""
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
                save_pages(self._kvs, pages, self._memory, [entry.place for entry in entries])
                self._saves.entries.append(entries)
        if self._saves.entries and self._stream is not None:
            self._saves.copied.append(torch.cuda.current_stream().record_event())

    def save_computed(self, saves: Sequence[SavedPages]) -> None:
        """Saves pages that no tier has yet; they can be found at once."""
        self.save([self._unsaved(part) for part in saves])
        self.settle(self.begun_saves(), [])

    def restore(self, restores: Sequence[RestoredPages]) -> Restore:
        """Copies fetched pages to the device."""
        pages, places = [], []
        for part in restores:
            ids = np.frombuffer(part.pages, np.int32).tolist()
            pages += ids
            places += self._store.places(part.fetch, part.first, len(ids))

        def load(layer: int) -> None:
            load_pages(self._kvs[layer], layer, pages, self._memory, places)

        if self._stream is None:
            return HostRestore(load, len(self._kvs))
        size = len(pages) * self._memory[0].nbytes
        return StreamRestore(self._stream, load, len(self._kvs), size)

    def begun_saves(self) -> Saves:
        """The saves since the last call, for `settle`."""
        saves, self._saves = self._saves, Saves()
        return saves

    def settle(self, saves: Saves, fetches_over: Sequence[int]) -> None:
        """After a step: publishes the saved pages and ends these fetches."""
        for event in saves.copied:
            event.synchronize()
        for entries in saves.entries:
            self._store.saved(entries)
        for fetch in fetches_over:
            self._store.end(fetch)

    def forget(self, message: ForgetPages | DiscardPages) -> None:
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
                self.settle(self.begun_saves(), [])
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
