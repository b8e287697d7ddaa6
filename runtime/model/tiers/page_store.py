"""The page store: keeps evicted pages in host memory, and in the disk and remote tiers below it."""

from __future__ import annotations

import logging
import math
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from ...messages import (
    DiscardPages,
    EndFetch,
    FetchPages,
    FindPages,
    ForgetPages,
    LocatePages,
    PagesFetched,
    PagesForgotten,
    PagesInTiers,
    PagesLocated,
    PageStoreInbox,
    PrefillAnswer,
    StoreCounts,
    StoreReport,
    UsedPages,
)
from ...processes.sockets import Inbox, Outbox
from .disk import StoredPage
from .fetches import Fetches
from .host_pool import KEY_BYTES, Entry, HostPool, list_pieces, split_keys
from .lower_tiers import LowerTiers
from .prefill_peers import PrefillPeers
from .prefill_server import PrefillServer

PAGES_AT_ONCE = 8
"""The thread writes at most this many pages before it looks at the inbox again."""
MAX_USED_KEYS = 100_000
IDLE_MS = 500
log = logging.getLogger(__name__)


class Uses:
    """Uses of pages on the device that the tiers do not know yet: the keys of consecutive pages for each use.
    Keeps the last uses, about `max_keys` keys in all."""

    def __init__(self, max_keys: int) -> None:
        self._max_bytes = max_keys * KEY_BYTES
        self._uses: deque[bytes] = deque()
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._uses)

    def add(self, keys: bytes) -> None:
        self._uses.append(keys)
        self._bytes += len(keys)
        while len(self._uses) > 1 and self._bytes > self._max_bytes:
            self._bytes -= len(self._uses.popleft())

    def take(self) -> Iterator[list[bytes]]:
        """Removes all uses, oldest first."""
        while self._uses:
            keys = self._uses.popleft()
            self._bytes -= len(keys)
            yield split_keys(keys)


class PageStore:
    """Answers fetches and writes pages in its own thread, so that no step waits for a disk or a network.

    Pages of a fetch are held in host memory until it is ended.
    """

    def __init__(self, pool: HostPool, tiers: LowerTiers, pieces: Sequence[int] = (1,)) -> None:
        """pieces: number of places that a page of each group of layers takes, or after that of pages a state
        of recurrent layers. The first group's page takes one"""
        self.pool = pool
        self.tiers = tiers
        self.pieces = pieces
        self._fetches = Fetches(pool, tiers, self.pieces)
        self._prefill_server: PrefillServer | None = None
        self._reports = True
        self._wake: Callable[[], None] = lambda: None
        self._to_forget: deque[ForgetPages | DiscardPages] = deque()
        self._answers: deque[PrefillAnswer] = deque()
        self._forgotten: list[ForgetPages] = []  # messages to be answered once the pages are erased
        self._uses = Uses(MAX_USED_KEYS)
        self._uses_due = 0.0  # next time to report uses to the tiers, on the monotonic clock
        self._unwritten = 0
        self._written = threading.Condition()
        self._order: list[bytes] | None = None  # order in which pages will be saved, as `expect` got it
        self._saved_pages = 0
        self._lost_pages = 0
        self._restored_pages = 0

    def start(
        self,
        inbox: Inbox[PageStoreInbox],
        scheduler: Outbox,
        peers: PrefillPeers | None = None,
        server: PrefillServer | None = None,
        *,
        reports: bool = True,
    ) -> None:
        """Starts the thread, which alone uses these from now on.

        peers: the prefill servers that compute prompts for this server
        server: computes prompts for decode servers
        reports: whether the store reports its counts to the scheduler; of several ranks only the first does
        """
        self._wake = inbox.wake
        self._fetches.peers, self._prefill_server, self._reports = peers, server, reports
        inbox.watch([*(peers.sockets if peers else []), *([server.socket] if server else [])])
        self.pool.host_memory.make_way_for_steps()
        threading.Thread(target=self._run, args=(inbox, scheduler), name="page store", daemon=True).start()

    # Methods that the model's thread calls

    def add_saved(self, entries: list[Entry]) -> None:
        """Makes consecutive pages available, whose contents were copied to their places."""
        self._saved_pages += len(entries)
        self._keep(entries)

    def write_again(self, keys: list[bytes]) -> None:
        """Writes consecutive pages again, as far as they are in memory."""
        self._keep([entry for key in keys if (entry := self.pool.hold(key)) is not None])

    def _keep(self, entries: list[Entry]) -> None:
        for entry in reversed(entries):
            to_write = self.tiers.needs(entry.key)
            if to_write:
                with self._written:
                    self._unwritten += 1
            self.pool.enter(entry, to_write)
        self.pool.release(entries)
        self._wake()

    def count_lost(self, pages: int) -> None:
        """Counts pages that were not saved, because host memory was full."""
        self._lost_pages += pages
        self._wake()

    def places(self, fetch: int, first: int, count: int, group: int = 0) -> list[int]:
        """Places in host memory of a fetch's pages, for a step that restores them (see `Fetches.places`)."""
        self._restored_pages += count * self.pieces[group]
        return self._fetches.places(fetch, first, count, group)

    def end(self, fetch: int) -> None:
        """Ends a fetch whose pages are restored."""
        self._fetches.end_restored(fetch)
        self._wake()

    def forget(self, message: ForgetPages | DiscardPages) -> None:
        self._to_forget.append(message)
        self._wake()

    def take_answer(self, answer: PrefillAnswer) -> None:
        """Takes the scheduler's answer to a request that computes a prompt for another server."""
        self._answers.append(answer)
        self._wake()

    def list_discarded(self, message: DiscardPages) -> list[bytes]:
        """The keys of pages and of all pieces of the others. A piece that stayed would become a part of what
        is saved next under the same key."""
        others = [self.list_pieces(keys, group) for group, keys in enumerate(message.others, 1)]
        return [*split_keys(message.keys), *chain.from_iterable(others)]

    def list_pieces(self, keys: bytes, group: int) -> list[bytes]:
        """The keys of all pieces of a group's pages, or of states."""
        return [piece for key in split_keys(keys) for piece in list_pieces(key, self.pieces[group])]

    def expect(self, order: list[bytes]) -> None:
        """Tells the tiers which pages are about to be saved, the most recently used first."""
        with self._written:
            self._unwritten += 1  # counts the order as one unwritten entry
        self._order = order
        self._wake()

    def finish(self) -> None:
        """Waits until all saved pages are written."""
        with self._written:
            self._written.wait_for(lambda: not self._unwritten)

    # Methods that the store's thread runs

    def _run(self, inbox: Inbox[PageStoreInbox], scheduler: Outbox) -> None:
        try:
            self._serve(inbox, scheduler)
        except BaseException:
            log.exception("the page store failed")
            os._exit(1)  # otherwise requests would wait for the store's answers for ever

    def _serve(self, inbox: Inbox[PageStoreInbox], scheduler: Outbox) -> None:
        reported = None
        while True:
            message = inbox.receive(self._timeout_ms())
            self.tiers.try_disk_again()
            if message is not None:
                self._take(message, scheduler)
            for message in inbox.waiting():
                self._take(message, scheduler)
            if self._prefill_server is not None:
                while self._answers:
                    self._prefill_server.note(self._answers.popleft())
                self._prefill_server.advance(scheduler)
            if self._fetches.peers is not None:
                self._fetches.peers.advance()
            try:
                self._forget(scheduler)
                self._take_order()
                self._fetch(scheduler)
                self._write()
                report = self._report()
            except sqlite3.Error as error:
                self._suspend_disk(error)
                report = self._report()
            if report != reported and self._reports:
                scheduler.send(StoreReport(report))
                reported = report

    def _timeout_ms(self) -> int | None:
        """Milliseconds until there is work even without a message; None: there is no such work."""
        if self._fetches.is_busy or self.pool.to_write or self._order is not None or self._forgotten:
            return 0
        disk = self.tiers.disk
        if self._uses or (disk is not None and disk.has_news):
            return max(0, math.ceil((self._uses_due - time.monotonic()) * 1000))
        peers, server = self._fetches.peers, self._prefill_server
        if (peers is not None and peers.is_busy) or (server is not None and server.is_busy):
            return IDLE_MS  # time limits may be over
        return None

    def _take(self, message: PageStoreInbox, scheduler: Outbox) -> None:
        match message:
            case FindPages():
                scheduler.send(self._fetches.find(message))
            case FetchPages():
                self._fetches.read(message.fetch)
            case EndFetch():
                if self._fetches.end(message.fetch):
                    scheduler.send(PagesFetched(message.fetch, 0))
            case UsedPages():
                self._uses.add(message.keys)
                for group, keys in enumerate(message.others, 1):
                    self._note_used(keys, group)
            case LocatePages():
                groups = [self._locate(split_keys(keys)) for keys in message.groups]
                scheduler.send(PagesLocated(message.question, groups))

    def _note_used(self, keys: bytes, group: int) -> None:
        stored = [key for key in split_keys(keys) if key in self.pool or key in self.tiers.on_disk]
        if stored:
            self._uses.add(b"".join(self.list_pieces(b"".join(stored), group)))

    def _locate(self, keys: list[bytes]) -> PagesInTiers:
        """Counts pages in host memory and on disk. Asking the remote tier would take a round trip."""
        on_disk = self.tiers.on_disk
        elsewhere = [key for key in keys if key not in self.pool]
        return PagesInTiers(len(keys), len(keys) - len(elsewhere), sum(key in on_disk for key in elsewhere))

    def _fetch(self, scheduler: Outbox) -> None:
        ready = self._fetches.advance()
        if ready is not None:
            scheduler.send(PagesFetched(*ready))

    def _forget(self, scheduler: Outbox) -> None:
        """Removes pages from all tiers; on disk, only a few at a time, so that fetches do not wait long."""
        while self._to_forget:
            doomed = self._to_forget.popleft()
            if isinstance(doomed, DiscardPages):
                keys = self.list_discarded(doomed)
                self.pool.discard(keys)
                self.tiers.discard(doomed.namespace, keys)
                continue
            dropped, names = doomed.dropped, (doomed.scope, doomed.namespace)
            self._forgotten.append(doomed)
            dropped.host_pages = self.pool.forget(*names)
            dropped.remote_pages = self.tiers.forget_remote(*names)
            dropped.disk_pages = self.tiers.forget_on_disk(*names)
        if self._forgotten and not self.tiers.erase():
            for done in self._forgotten:
                scheduler.send(PagesForgotten(done.client, done.dropped))
            self._forgotten.clear()

    def _write(self) -> None:
        """Writes a few pages to the lower tiers; only a few, so that fetches do not wait long."""
        queue = self.pool.to_write
        batch = [queue.popleft() for _ in range(min(PAGES_AT_ONCE, len(queue)))]
        if not batch:
            if time.monotonic() >= self._uses_due:
                self._save_uses()
            return
        kept = [entry for entry in batch if entry.key in self.pool]  # other pages were forgotten meanwhile
        try:
            self.tiers.write(
                [StoredPage(entry.key, entry.namespace, self.pool.content(entry)) for entry in kept]
            )
        finally:
            self.pool.release(batch)
            self._count_written(len(batch))

    def _save_uses(self) -> None:
        """Reports uses to the tiers from time to time, once all pages are written."""
        self._uses_due = time.monotonic() + IDLE_MS / 1000
        disk = self.tiers.disk
        for keys in self._uses.take():
            self.pool.release([entry for key in keys if (entry := self.pool.hold(key)) is not None])
            if disk is not None:
                disk.touch([key for key in keys if key in disk.keys])
        if disk is not None:
            disk.save_uses()

    def _take_order(self) -> None:
        order, self._order = self._order, None
        if order is None:
            return
        try:
            self._save_uses()
            if self.tiers.disk is not None:
                self.tiers.disk.expect(order)
        finally:
            self._count_written(1)

    def _count_written(self, count: int) -> None:
        with self._written:
            self._unwritten -= count
            self._written.notify_all()

    def _suspend_disk(self, error: sqlite3.Error) -> None:
        self.tiers.suspend_disk(error)
        for doomed in self._forgotten:
            doomed.dropped.disk_pages = None
        while self.pool.to_write:
            self._write()

    def _report(self) -> StoreCounts:
        pages, disk = len(self.pool), self.tiers.disk
        return StoreCounts(
            host_pages=pages,
            host_bytes=pages * self.pool.place_bytes,
            disk_pages=len(disk.keys) if disk is not None else 0,
            disk_bytes=disk.bytes_used if disk is not None else 0,
            saved_pages=self._saved_pages,
            lost_pages=self._lost_pages,
            host_hits=self._fetches.host_hits,
            disk_hits=self.tiers.disk_hits,
            remote_hits=self.tiers.remote_hits,
            prefill_hits=self._fetches.peers.received_pages if self._fetches.peers is not None else 0,
            prefill_pages=self._prefill_server.sent_pages if self._prefill_server is not None else 0,
            restored_pages=self._restored_pages,
        )
