"""The tiers below host memory: pages on disk and in a remote store."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence, Set
from typing import TYPE_CHECKING

from .disk import DiskStore, ForeignFileError, StoredPage

if TYPE_CHECKING:
    from .remote import RemoteStore

SILENCE_SECONDS = 30.0
log = logging.getLogger(__name__)


class LowerTiers:
    """Disk and remote store, if any. If the disk fails, methods raise sqlite3.Error; then `suspend_disk`."""

    def __init__(self, disk: DiskStore | None, remote: RemoteStore | None) -> None:
        self.disk = disk
        self.remote = remote
        self.disk_hits = 0
        self.remote_hits = 0
        self._failed_disk: DiskStore | None = None
        self._to_discard: set[bytes] = set()  # keys to discard on disk once it works again
        self._next_try = 0.0  # next try of a failed disk, on the monotonic clock

    def __bool__(self) -> bool:
        return self.disk is not None or self.remote is not None

    def needs(self, key: bytes) -> bool:
        """Whether a page must be written to a lower tier. A remote store checks itself which pages it has."""
        disk = self.disk  # copied, because another thread may suspend it meanwhile
        return self.remote is not None or (disk is not None and key not in disk.keys)

    @property
    def on_disk(self) -> Set[bytes]:
        """The keys of the pages on disk."""
        return self.disk.keys if self.disk is not None else frozenset()

    def count(self, namespace: str, keys: Sequence[bytes], is_here: Callable[[bytes], bool]) -> int:
        """How many pages, counted from the first of `keys`, are stored or, by `is_here`, in memory."""
        on_disk = self.on_disk
        lacking = [key for key in keys if not is_here(key) and key not in on_disk]
        if not lacking:
            return len(keys)
        elsewhere = self.remote.count(namespace, lacking) if self.remote is not None else 0
        return len(keys) if elsewhere == len(lacking) else keys.index(lacking[elsewhere])

    def find(self, namespace: str, keys: Sequence[bytes], is_here: Callable[[bytes], bool]) -> set[bytes]:
        """The keys that are stored or, by `is_here`, in memory."""
        on_disk = self.on_disk
        found = {key for key in keys if is_here(key) or key in on_disk}
        if self.remote is not None and (lacking := [key for key in keys if key not in found]):
            found |= self.remote.find(namespace, lacking)
        return found

    def read(self, namespace: str, wanted: Mapping[bytes, memoryview]) -> set[bytes]:
        """Fills contents by key; returns the keys of the pages that were found whole."""
        found: set[bytes] = set()
        if self.disk is not None:
            keys = self.disk.keys
            found = {key for key, content in wanted.items() if key in keys and self.disk.read(key, content)}
            self.disk_hits += len(found)
        lacking = {key: content for key, content in wanted.items() if key not in found}
        if self.remote is not None and lacking:
            fetched = self.remote.read(namespace, lacking)
            self.remote_hits += len(fetched)
            found |= fetched
        return found

    def write(self, pages: Sequence[StoredPage]) -> None:
        if self.disk is not None:
            self.disk.write([page for page in pages if page.key not in self.disk.keys])
        if self.remote is not None:
            self.remote.write(pages)

    def forget_remote(self, scope: str, namespace: str | None) -> int | None:
        """Removes `namespace`, or all in `scope`, from the store. Returns the number of pages, or None."""
        return self.remote.forget(scope, namespace) if self.remote is not None else 0

    def forget_on_disk(self, scope: str, namespace: str | None) -> int | None:
        """Does so on disk; None: it failed and may still have some. Call `erase` until it returns False."""
        self.try_disk_again(insist=True)
        if self.disk is None:
            return None if self._failed_disk is not None else 0
        return self.disk.forget(scope, namespace)

    def erase(self) -> bool:
        """Overwrites some forgotten pages on disk; returns whether there are more."""
        return self.disk is not None and self.disk.erase()

    def discard(self, namespace: str, keys: Sequence[bytes]) -> None:
        if self.remote is not None:
            self.remote.discard(namespace, keys)
        if self.disk is not None or self._failed_disk is not None:
            self._to_discard.update(keys)
            self._discard_on_disk()

    def suspend_disk(self, error: Exception) -> None:
        log.warning("the disk cache is not used for %.0f s: %s", SILENCE_SECONDS, error)
        self._next_try = time.monotonic() + SILENCE_SECONDS
        if self.disk is not None:
            self.disk.abandon()
            self.disk, self._failed_disk = None, self.disk

    def try_disk_again(self, insist: bool = False) -> None:
        """Opens a failed disk again, if its pause is over or with `insist`."""
        if self._failed_disk is None or (time.monotonic() < self._next_try and not insist):
            return
        try:
            self.disk, self._failed_disk = self._failed_disk.reopened(), None
            self._discard_on_disk()
        except (sqlite3.Error, OSError, ForeignFileError) as error:
            self.suspend_disk(error)

    def _discard_on_disk(self) -> None:
        if self.disk is not None and self._to_discard:
            self.disk.discard(list(self._to_discard))
            self._to_discard.clear()
