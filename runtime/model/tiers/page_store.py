"""Keeps pages that the device gave up: in host memory, and on disk and in a remote store behind it."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...messages import (
    DiscardPages,
    Fetched,
    ForgetPages,
    Forgotten,
    PageStoreInbox,
    StoreCounts,
    StoreReport,
)
from ...sockets import Inbox, Outbox
from .disk import DiskStore, StoredPage
from .host_pool import Entry, HostPool, split_keys

if TYPE_CHECKING:
    from .remote import RemoteStore

PAGES_AT_ONCE = 8  # read or written between two looks at who asks
IDLE_MS = 500
log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Fetching:
    """Entries of the first of the keys, as far as they are held by now."""

    fetch: int
    namespace: str
    keys: list[bytes]
    entries: list[Entry] = field(default_factory=list)


class PageStore:
    """Answers fetches and writes in a thread of its own, so that no step waits for a disk or a network.

    What a fetch has found is held in host memory until the model's thread ends it.
    """

    def __init__(self, pool: HostPool, disk: DiskStore | None, remote: RemoteStore | None = None) -> None:
        self.pool = pool
        self.disk = disk  # None from when it fails on
        self._remote = remote
        self._wake: Callable[[], None] = lambda: None
        self._fetching: deque[_Fetching] = deque()
        self._fetched: dict[int, list[Entry]] = {}
        self._to_forget: deque[ForgetPages | DiscardPages] = deque()
        self._unwritten = 0
        self._written = threading.Condition()
        self._order: list[bytes] | None = None  # see `expect`
        self._saved_pages = 0
        self._lost_pages = 0
        self._restored_pages = 0
        self._host_hits = 0
        self._disk_hits = 0
        self._remote_hits = 0

    @property
    def shares(self) -> bool:
        """Whether others may find its pages: servers to come, or on other machines."""
        return self.disk is not None or self._remote is not None

    def start(self, inbox: Inbox[PageStoreInbox], scheduler: Outbox) -> None:
        """Neither may be used by another thread from now on."""
        self._wake = inbox.wake
        threading.Thread(target=self._run, args=(inbox, scheduler), name="page store", daemon=True).start()

    # The model's thread

    def saved(self, entries: list[Entry]) -> None:
        """Pages that follow each other have their contents."""
        self._saved_pages += len(entries)
        disk = self.disk  # the store's thread may give it up meanwhile
        for entry in reversed(entries):
            on_disk = disk is None or entry.key in disk.keys
            to_write = not on_disk or self._remote is not None
            if to_write:
                with self._written:
                    self._unwritten += 1
            self.pool.enter(entry, to_write)
        self.pool.let_go(entries)
        self._wake()

    def lose(self, pages: int) -> None:
        """There was no room for them."""
        self._lost_pages += pages
        self._wake()

    def places(self, fetch: int, first: int, count: int) -> list[int]:
        """Where pages of a fetch are in host memory, for a step that restores them."""
        self._restored_pages += count
        return [entry.place for entry in self._fetched[fetch][first : first + count]]

    def end(self, fetch: int) -> None:
        self.pool.let_go(self._fetched.pop(fetch))
        self._wake()

    def forget(self, message: ForgetPages | DiscardPages) -> None:
        self._to_forget.append(message)
        self._wake()

    def expect(self, order: list[bytes]) -> None:
        """These are going to be saved, and are to be kept as if the first of them was used last."""
        with self._written:
            self._unwritten += 1  # the order
        self._order = order
        self._wake()

    def finish(self) -> None:
        """Waits until what was saved is written."""
        with self._written:
            self._written.wait_for(lambda: not self._unwritten)

    # The store's thread

    def _run(self, inbox: Inbox[PageStoreInbox], scheduler: Outbox) -> None:
        try:
            self._serve(inbox, scheduler)
        except BaseException:
            log.exception("the page store failed")
            os._exit(1)  # else requests would wait for its answers for ever

    def _serve(self, inbox: Inbox[PageStoreInbox], scheduler: Outbox) -> None:
        reported = None
        while True:
            message = inbox.receive(self._patience_ms())
            if message is not None:
                self._fetching.append(_Fetching(message.fetch, message.namespace, split_keys(message.keys)))
            try:
                self._forget(scheduler)
                self._take_order()
                self._fetch(scheduler)
                self._write()
                report = self._report()
            except sqlite3.Error as error:
                self._give_up_disk(error)
                report = self._report()
            if report != reported:
                scheduler.send(StoreReport(report))
                reported = report

    def _patience_ms(self) -> int | None:
        """How long nobody needs to ask for anything before there is something to do."""
        if self._fetching or self.pool.to_write or self._order is not None:
            return 0
        return IDLE_MS if self.disk is not None and self.disk.has_news else None

    def _fetch(self, scheduler: Outbox) -> None:
        """A few pages of the fetch whose turn it is: who wants little does not wait for who wants much."""
        if not self._fetching:
            return
        fetching = self._fetching[0]
        more = self._advance(fetching)
        self._fetching.popleft()
        if more:
            self._fetching.append(fetching)
            return
        if self.disk is not None:
            self.disk.touch([entry.key for entry in fetching.entries])
        self._fetched[fetching.fetch] = fetching.entries
        scheduler.send(Fetched(fetching.fetch, len(fetching.entries)))

    def _advance(self, fetching: _Fetching) -> bool:
        """Brings pages into memory and holds them, up to the first that isn't stored or finds no room.

        Returns whether there may be more.
        """
        at = len(fetching.entries)
        for key in fetching.keys[at : at + PAGES_AT_ONCE]:
            entry = self.pool.hold(key)
            if entry is not None:
                self._host_hits += 1
            else:
                entry = self._read(fetching.namespace, key)
                if entry is None:
                    return False
            fetching.entries.append(entry)
        return len(fetching.entries) < len(fetching.keys)

    def _read(self, namespace: str, key: bytes) -> Entry | None:
        on_disk = self.disk is not None and key in self.disk.keys
        if not on_disk and self._remote is None:
            return None
        entry = self.pool.reserve(key, namespace)
        if entry is None:
            return None
        found = False
        try:
            found = self._fill(entry, on_disk)
        finally:
            if not found:
                self.pool.let_go([entry])
        if not found:
            return None
        self.pool.enter(entry, to_write=False)
        return entry

    def _fill(self, entry: Entry, on_disk: bool) -> bool:
        content = self.pool.content(entry)
        if on_disk and self.disk is not None and self.disk.read(entry.key, content):
            self._disk_hits += 1
            return True
        if self._remote is not None and self._remote.read(entry.namespace, entry.key, content):
            self._remote_hits += 1
            return True
        return False

    def _forget(self, scheduler: Outbox) -> None:
        while self._to_forget:
            doomed = self._to_forget.popleft()
            if isinstance(doomed, DiscardPages):
                self._discard(doomed.namespace, split_keys(doomed.keys))
                continue
            dropped, names = doomed.dropped, (doomed.scope, doomed.namespace)
            dropped.host_pages = self.pool.forget(*names)
            dropped.remote_pages = self._remote.forget(*names) if self._remote is not None else 0
            dropped.disk_pages = self.disk.forget(*names) if self.disk is not None else 0
            scheduler.send(Forgotten(doomed.client, dropped))

    def _discard(self, namespace: str, keys: list[bytes]) -> None:
        self.pool.discard(keys)
        if self._remote is not None:
            self._remote.discard(namespace, keys)
        if self.disk is not None:
            self.disk.discard(keys)

    def _write(self) -> None:
        """A few pages; then somebody may want an answer."""
        queue = self.pool.to_write
        batch = [queue.popleft() for _ in range(min(PAGES_AT_ONCE, len(queue)))]
        if not batch:
            if self.disk is not None:
                self.disk.save_uses()
            return
        kept = [entry for entry in batch if entry.key in self.pool]  # else forgotten meanwhile
        pages = [StoredPage(entry.key, entry.namespace, self.pool.content(entry)) for entry in kept]
        try:
            if self.disk is not None:
                self.disk.write([page for page in pages if page.key not in self.disk.keys])
            if self._remote is not None:
                self._remote.write(pages)
        finally:
            self.pool.let_go(batch)
            self._count_written(len(batch))

    def _take_order(self) -> None:
        order, self._order = self._order, None
        if order is None:
            return
        try:
            if self.disk is not None:
                self.disk.expect(order)
        finally:
            self._count_written(1)

    def _count_written(self, count: int) -> None:
        with self._written:
            self._unwritten -= count
            self._written.notify_all()

    def _give_up_disk(self, error: sqlite3.Error) -> None:
        log.warning("the disk cache can't be used any more: %s", error)
        self.disk = None
        while self.pool.to_write:
            self._write()

    def _report(self) -> StoreCounts:
        pages = len(self.pool)
        return StoreCounts(
            host_pages=pages,
            host_bytes=pages * self.pool.place_bytes,
            disk_pages=len(self.disk.keys) if self.disk is not None else 0,
            disk_bytes=self.disk.bytes_used if self.disk is not None else 0,
            saved_pages=self._saved_pages,
            lost_pages=self._lost_pages,
            host_hits=self._host_hits,
            disk_hits=self._disk_hits,
            remote_hits=self._remote_hits,
            restored_pages=self._restored_pages,
        )
