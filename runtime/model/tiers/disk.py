"""Pages on disk, in an SQLite database: the tier that outlives the server."""

from __future__ import annotations

import logging
import os
import sqlite3
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

FILE_NAME = "pages.sqlite"
APPLICATION = int.from_bytes(b"arbo", "big")
FORMAT = 1
FILE_PAGE_BYTES = 16384
EMPTY_FILE_PAGES = 6  # SQLite pages of a file without content
FREE_PAGES_AT_ONCE = 1 << 14  # SQLite pages that one row of zeros overwrites
ERASED_AT_ONCE = 16  # pages of the cache erased at once, which SQLite copies into its journal first
BUSY_SECONDS = 10.0  # timeout for another server's lock on the file
RETRY_SECONDS = 1.0  # the same timeout after the file has failed
NEVER = (1 << 63) - 1  # a time of use later than any other
log = logging.getLogger(__name__)

_TABLES = """
CREATE TABLE IF NOT EXISTS contents (id INTEGER PRIMARY KEY, content BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS pages (
    key BLOB PRIMARY KEY, namespace TEXT NOT NULL, used INTEGER NOT NULL, checksum INTEGER NOT NULL,
    content INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS clean (id INTEGER PRIMARY KEY); -- a row while free pages hold nothing but zeros
CREATE INDEX IF NOT EXISTS pages_by_use ON pages (used);
CREATE INDEX IF NOT EXISTS pages_by_namespace ON pages (namespace);
"""


class ForeignFileError(Exception):
    """The file is not a page store of this version."""


class StoredPage(NamedTuple):
    key: bytes
    namespace: str
    content: memoryview


class DiskStore:
    """Stores at most `limit` bytes of pages by key, and evicts the least recently used ones.

    Reading a page verifies its checksum over key and content. Methods raise sqlite3.Error when the file or
    the disk fails; the constructor also raises ForeignFileError.
    """

    def __init__(self, directory: Path, limit: int, timeout: float = BUSY_SECONDS) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.directory = directory
        self._path = directory / FILE_NAME
        self._limit = limit
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
        self._database = sqlite3.connect(
            self._path, timeout=timeout, isolation_level=None, check_same_thread=False
        )
        self._to_erase: set[bytes] = set()
        try:
            self._open()
        except UnicodeDecodeError as error:  # sqlite3 quotes the damaged name of a table in its message
            raise sqlite3.DatabaseError("its schema is damaged") from error
        self._use = self._number("SELECT coalesce(max(used), 0) FROM pages")
        self._touched: dict[bytes, int] = {}
        self._expected: dict[bytes, int] = {}
        self.keys = {key for (key,) in self._database.execute("SELECT key FROM pages")}
        self._database.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000:.0f}")

    @property
    def bytes_used(self) -> int:
        pages = self._number("PRAGMA page_count") - self._number("PRAGMA freelist_count")
        return pages * FILE_PAGE_BYTES

    def read(self, key: bytes, content: memoryview) -> bool:
        """Fills `content`; False, and the page is removed, if it is missing or damaged."""
        found = self._database.execute(
            "SELECT checksum, contents.content FROM pages JOIN contents ON id = pages.content WHERE key = ?",
            (key,),
        ).fetchone()
        if found is not None:
            checksum, stored = found
            if len(stored) == len(content) and checksum == _checksum(key, stored):
                content[:] = stored
                return True
            log.warning("a page in %s is damaged; it is computed again", self._path)
        self._delete([key])
        return False

    def touch(self, keys: Sequence[bytes]) -> None:
        """Marks consecutive pages as just used, the first one last."""
        for key in reversed(keys):
            self._use += 1
            self._touched[key] = self._use

    @property
    def has_news(self) -> bool:
        """Whether this process knows uses that the file does not have yet."""
        return bool(self._touched)

    def save_uses(self) -> None:
        if self._touched:
            uses = [(used, key) for key, used in self._touched.items()]
            with self._transaction():
                self._database.executemany("UPDATE pages SET used = ? WHERE key = ?", uses)
            self._touched.clear()

    def expect(self, keys: Sequence[bytes]) -> None:
        """Announces pages that will be written unless they are stored. They count as used, as in `touch`.

        Writing them evicts no page that was used later.
        """
        self._use = max(self._use, self._number("SELECT coalesce(max(used), 0) FROM pages"))
        self.touch(keys)
        self._expected = {key: self._touched[key] for key in keys}

    def write(self, pages: Sequence[StoredPage]) -> None:
        """Writes the pages, the first one to be evicted first. Writes none if they do not all fit."""
        before = min((self._expected.get(page.key, NEVER) for page in pages), default=NEVER)
        if not self._evict_for(sum(len(page.content) for page in pages), before):
            return
        with self._transaction():
            for page in pages:
                self._use += 1
                self._insert(page, self._expected.get(page.key, self._use))
        self.keys.update(page.key for page in pages)

    def forget(self, scope: str, namespace: str | None) -> int:
        """Removes the pages of `namespace`, or of all namespaces in `scope`; returns their number.

        Their contents stay in the file until `erase` returns False.
        """
        where = "substr(namespace, 1, length(?1)) = ?1" if namespace is None else "namespace = ?1"
        wanted = scope if namespace is None else namespace
        doomed = {key for (key,) in self._database.execute(f"SELECT key FROM pages WHERE {where}", (wanted,))}
        self.keys -= doomed
        before = len(self._to_erase)
        self._to_erase |= doomed
        return len(self._to_erase) - before

    def erase(self) -> bool:
        """Overwrites some of the forgotten pages, or if there are none, the file's unused space. Returns
        whether there is more to overwrite."""
        if self._to_erase:
            some = [self._to_erase.pop() for _ in range(min(ERASED_AT_ONCE, len(self._to_erase)))]
            self._delete(some, overwrite=True)
            return bool(self._to_erase) or self._has_remains()
        if self._has_remains():
            self._overwrite_free_pages()
        return False

    def discard(self, keys: Sequence[bytes]) -> None:
        self._delete(keys)

    def shrink(self) -> None:
        """Shrinks a file that is larger than its limit, which takes a while."""
        if self._number("PRAGMA page_count") * FILE_PAGE_BYTES <= self._limit:
            return
        log.info("%s is larger than it may be: what was used longest ago goes", self._path)
        self._evict_for(0, NEVER)
        try:
            self._database.execute("VACUUM")  # which writes the remaining pages twice
        except sqlite3.OperationalError as error:
            log.warning("%s could not be made smaller, %s: free room stays in it", self._path, error)

    def close(self) -> None:
        self.save_uses()
        self.abandon()

    def abandon(self) -> None:
        """Closes a failed file without writing."""
        self._database.close()

    def reopened(self) -> DiskStore:
        """Opens the file again, with a short timeout for locks. Raises OSError too."""
        return DiskStore(self.directory, self._limit, timeout=RETRY_SECONDS)

    def _open(self) -> None:
        self._database.execute(f"PRAGMA page_size = {FILE_PAGE_BYTES}")
        self._database.execute("PRAGMA synchronous = NORMAL")
        tables = self._number("SELECT count(*) FROM sqlite_master")
        if tables == 0:
            self._database.execute(f"PRAGMA application_id = {APPLICATION}")
            self._database.execute(f"PRAGMA user_version = {FORMAT}")
        if self._number("PRAGMA application_id") != APPLICATION:
            raise ForeignFileError("it is not a page store of Arbora")
        if self._number("PRAGMA user_version") != FORMAT:
            raise ForeignFileError(f"it was written in another format than {FORMAT}")
        self._database.executescript(_TABLES)
        self._delete_zeros()
        if tables == 0:
            self._database.execute("INSERT OR IGNORE INTO clean VALUES (1)")

    def _insert(self, page: StoredPage, used: int) -> None:
        replaced = self._database.execute("SELECT content FROM pages WHERE key = ?", (page.key,)).fetchone()
        if replaced is not None:
            return  # another server wrote the page first
        at = self._database.execute("INSERT INTO contents (content) VALUES (?)", (page.content,)).lastrowid
        checksum = _checksum(page.key, page.content)
        self._database.execute(
            "INSERT INTO pages VALUES (?, ?, ?, ?, ?)", (page.key, page.namespace, used, checksum, at)
        )

    def _evict_for(self, more: int, before: int) -> bool:
        """Evicts pages used before `before` until `more` bytes fit; False if they can't fit."""
        self.save_uses()
        while self.bytes_used + _bytes_for(more) > self._limit:
            older = "SELECT key FROM pages WHERE used < ? ORDER BY used LIMIT 8"
            oldest = self._database.execute(older, (before,)).fetchall()
            if not oldest:
                return False
            self._delete([key for (key,) in oldest])
        return True

    def _delete(self, keys: Iterable[bytes], overwrite: bool = False) -> None:
        """Deletes pages. Without `overwrite` SQLite writes a third as much, but contents stay readable."""
        self._database.execute(f"PRAGMA secure_delete = {'ON' if overwrite else 'FAST'}")
        with self._transaction():
            if not overwrite:
                self._database.execute("DELETE FROM clean")
            for key in keys:
                self.keys.discard(key)
                self._touched.pop(key, None)
                self._database.execute(
                    "DELETE FROM contents WHERE id = (SELECT content FROM pages WHERE key = ?)", (key,)
                )
                self._database.execute("DELETE FROM pages WHERE key = ?", (key,))

    def _has_remains(self) -> bool:
        """Whether free pages of the file may hold removed contents, of this server or another."""
        return not self._number("SELECT count(*) FROM clean")

    def _overwrite_free_pages(self) -> None:
        """Writes rows of zeros, which fill whole pages except for some bytes."""
        with self._transaction():
            while free := self._number("PRAGMA freelist_count"):
                size = min(free, FREE_PAGES_AT_ONCE) * (FILE_PAGE_BYTES - 4) + FILE_PAGE_BYTES // 4
                self._database.execute(
                    "INSERT INTO contents SELECT min(coalesce(min(id), 0), 0) - 1, zeroblob(?) FROM contents",
                    (size,),
                )
        with self._transaction():
            if not self._number("PRAGMA freelist_count"):  # otherwise another server has just removed a page
                self._database.execute("INSERT OR IGNORE INTO clean VALUES (1)")
            self._delete_zeros()

    def _delete_zeros(self) -> None:
        self._database.execute("PRAGMA secure_delete = FAST")
        self._database.execute("DELETE FROM contents WHERE id < 0")

    def _transaction(self) -> _Transaction:
        return _Transaction(self._database)

    def _number(self, query: str) -> int:
        return int(self._database.execute(query).fetchone()[0])


class _Transaction:
    """A transaction: all of it is written, or nothing."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def __enter__(self) -> None:
        self._database.execute("BEGIN IMMEDIATE")

    def __exit__(self, error: object, *_: object) -> None:
        if error is None:
            self._database.execute("COMMIT")
        elif self._database.in_transaction:  # SQLite has ended it already because the disk is full
            self._database.execute("ROLLBACK")


def least_limit(content_bytes: int) -> int:
    """The smallest limit of a file that can store `content_bytes` bytes of pages at once."""
    return EMPTY_FILE_PAGES * FILE_PAGE_BYTES + _bytes_for(content_bytes)


def _bytes_for(content_bytes: int) -> int:
    """Bytes in the file of contents and SQLite's overhead."""
    return content_bytes * 17 // 16 + FILE_PAGE_BYTES


def _checksum(key: bytes, content: bytes | memoryview) -> int:
    return zlib.crc32(content, zlib.crc32(key))
