"""The tables of records and their parts, and what one transaction does with them."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ....runtime.errors import RequestError
from ...core.validation import invalid_field
from .paging import PageQuery

VERSION = 3
OPEN_STATES = ("queued", "validating", "in_progress", "finalizing", "cancelling")
"""States of records on which a process still works. They are neither evicted nor deleted by age."""
INCOMPLETE = "incomplete"
"""The state of records that are still being written. Lists do not show them."""
_OPEN = ", ".join(f"'{state}'" for state in OPEN_STATES)
SCHEMA = """
CREATE TABLE records (
    number INTEGER PRIMARY KEY,
    kind TEXT NOT NULL,
    id TEXT NOT NULL UNIQUE,
    owner TEXT NOT NULL,
    size INTEGER NOT NULL,
    expires REAL NOT NULL,
    state TEXT NOT NULL,
    runner TEXT,
    source TEXT,
    body BLOB NOT NULL
);
CREATE INDEX records_of_owner ON records (owner, kind, number);
CREATE INDEX records_by_use ON records (owner, expires);
CREATE INDEX records_by_expiry ON records (expires);
CREATE INDEX records_by_state ON records (state);
CREATE TABLE parts (
    record INTEGER NOT NULL REFERENCES records (number) ON DELETE CASCADE,
    place INTEGER NOT NULL,
    kind TEXT NOT NULL,
    id TEXT,
    body BLOB NOT NULL,
    UNIQUE (record, place)
);
CREATE INDEX parts_by_id ON parts (id) WHERE id IS NOT NULL;
CREATE TABLE owners (owner TEXT PRIMARY KEY, size INTEGER NOT NULL) WITHOUT ROWID;
CREATE TRIGGER record_added AFTER INSERT ON records BEGIN
    INSERT INTO owners VALUES (NEW.owner, NEW.size)
    ON CONFLICT DO UPDATE SET size = size + NEW.size;
END;
CREATE TRIGGER record_resized AFTER UPDATE OF size ON records BEGIN
    UPDATE owners SET size = size + NEW.size - OLD.size WHERE owner = NEW.owner;
END;
CREATE TRIGGER record_deleted AFTER DELETE ON records BEGIN
    UPDATE owners SET size = size - OLD.size WHERE owner = OLD.owner;
    DELETE FROM owners WHERE owner = OLD.owner
        AND NOT EXISTS (SELECT 1 FROM records WHERE owner = OLD.owner);
END
"""
"""Sizes are in bytes. An owner's size is the sum over its records. Changed tables need a new `VERSION`."""

_PARTS_BY_ID = "parts INDEXED BY parts_by_id"
_EVICTED_AT_ONCE = 16
_EVICTABLE = f"""
SELECT id, size FROM records
WHERE state NOT IN ({_OPEN}) AND owner = (
    SELECT owner FROM owners
    WHERE EXISTS (SELECT 1 FROM records WHERE owner = owners.owner AND state NOT IN ({_OPEN}))
    ORDER BY size DESC LIMIT 1
)
ORDER BY expires LIMIT ?
"""
_SHRINK_PAGES = 1024
"""Maximum pages that one transaction removes from the file."""
KEPT_PAGES = 1024
"""Free pages that stay in the file for the next rows."""


class Record(NamedTuple):
    """`owner` is the hash of the API key, empty without keys. `size` is in bytes, and counts against the
    owner's space.

    expires: when the record is deleted, in seconds since 1970
    runner: the token of the process that works on the record
    source: the id of the record that this one continues or reads, which stays while this one is open
    body: the record's JSON
    number: the place in lists, given by `Transaction.add`
    """

    kind: str
    id: str
    owner: str
    size: int
    expires: float
    state: str
    runner: str | None
    source: str | None
    body: bytes
    number: int = -1


_COLUMNS = ", ".join(Record._fields)


class Part(NamedTuple):
    """One item of a record's list. `place` orders the parts of a record; None: behind the others."""

    kind: str
    id: str | None
    body: bytes
    place: int | None = None


class Transaction:
    """One transaction. `max_bytes` limits the bytes of all records. With `shares` several keys share them."""

    def __init__(self, connection: sqlite3.Connection, max_bytes: int, shares: bool) -> None:
        self._connection = connection
        self._max_bytes = max_bytes
        self._shares = shares

    def rows(self, statement: str, values: Iterable[Any] = ()) -> list[Any]:
        return self._connection.execute(statement, tuple(values)).fetchall()

    # Methods for records.

    def find(self, kind: str, id: str, owner: str | None = None) -> Record | None:
        """The record of this owner, or of any owner, unless it has expired."""
        rows = self.rows(
            f"SELECT {_COLUMNS} FROM records WHERE kind = ? AND id = ? AND owner = coalesce(?, owner) "
            "AND expires > ?",
            (kind, id, owner, time.time()),
        )
        return Record(*rows[0]) if rows else None

    def list_open(self, kind: str) -> list[Record]:
        """The open records of a kind, in the order in which they were added."""
        statement = f"SELECT {_COLUMNS} FROM records WHERE state IN ({_OPEN}) AND kind = ? ORDER BY number"
        return [Record(*row) for row in self.rows(statement, (kind,))]

    def add(self, record: Record) -> Record:
        ((number,),) = self.rows(
            f"INSERT INTO records ({_COLUMNS}) VALUES ({', '.join('?' * len(record))}) RETURNING number",
            (*record[:-1], None),
        )
        return record._replace(number=number)

    def change(self, record: Record, **columns: Any) -> Record:
        """Changes columns of a record. Returns the changed record."""
        assignments = ", ".join(f"{name} = ?" for name in columns)
        self.rows(f"UPDATE records SET {assignments} WHERE number = ?", (*columns.values(), record.number))
        return record._replace(**columns)

    def delete(self, ids: Iterable[str]) -> None:
        self.rows("DELETE FROM records WHERE id IN (SELECT value FROM json_each(?))", (json.dumps([*ids]),))

    # Methods for parts.

    def add_parts(self, record: Record, parts: Sequence[Part], copies: int = 1) -> Record:
        """Adds parts to the record. The bytes of each count `copies` times."""
        ((last,),) = self.rows(
            "SELECT coalesce(max(place), -1) FROM parts WHERE record = ?", (record.number,)
        )
        self._connection.executemany(
            "INSERT INTO parts (record, place, kind, id, body) VALUES (?, ?, ?, ?, ?)",
            [
                (record.number, place if part.place is None else part.place, part.kind, part.id, part.body)
                for place, part in enumerate(parts, start=last + 1)
            ],
        )
        return self.change(record, size=record.size + copies * sum(len(part.body) for part in parts))

    def read_parts(self, record: Record, *kinds: str) -> list[bytes]:
        """The bodies of the record's parts of these kinds, in their order."""
        rows = self.rows(
            f"SELECT body FROM parts WHERE record = ? AND {_is_of(kinds)} ORDER BY place",
            (record.number, *kinds),
        )
        return [body for (body,) in rows]

    def delete_parts(self, record: Record, condition: str = "true", *values: object) -> None:
        """Deletes the parts that meet the condition, and subtracts their bytes once from the record's
        size."""
        rows = self.rows(
            f"DELETE FROM parts WHERE record = ? AND {condition} RETURNING length(body)",
            (record.number, *values),
        )
        self.change(record, size=record.size - sum(size for (size,) in rows))

    # Methods for lists.

    def list_records(self, owner: str, kinds: Sequence[str], page: PageQuery) -> list[tuple[str, bytes]]:
        """The id and body of the owner's records on a page, and of one more unless it is the last page.

        Raises `RequestError` if the page follows an item that the list does not have.
        """
        condition = f"owner = ? AND expires > ? AND state != ? AND {_is_of(kinds)}"
        values = (owner, time.time(), INCOMPLETE, *kinds)
        return self._list("records", "records", "number", condition, values, page)

    def list_parts(self, record: Record, kinds: Sequence[str], page: PageQuery) -> list[tuple[str, bytes]]:
        """As `list_records`, for a record's parts."""
        condition = f"record = ? AND {_is_of(kinds)}"
        return self._list("parts", _PARTS_BY_ID, "place", condition, (record.number, *kinds), page)

    def _list(
        self, table: str, by_id: str, order: str, condition: str, values: tuple[Any, ...], page: PageQuery
    ) -> list[tuple[str, bytes]]:
        if page.after is not None:
            after = f"SELECT {order} FROM {by_id} WHERE id = ? AND {condition}"
            if not (place := self.rows(after, (page.after, *values))):
                raise invalid_field("after", f"is {page.after[:100]!r}, which is no item of the list")
            condition += f" AND {order} {'>' if page.is_ascending else '<'} ?"
            values = (*values, place[0][0])
        direction = "ASC" if page.is_ascending else "DESC"
        return self.rows(
            f"SELECT id, body FROM {table} WHERE {condition} ORDER BY {order} {direction} LIMIT ?",
            (*values, page.limit + 1),
        )

    # Methods for the space on the disk.

    def left(self, owner: str) -> int:
        """The bytes that the owner may still use; negative if it uses too much.

        If keys share the space, an owner never uses more than it leaves free, so others find some space at
        any time.
        """
        free = -self._excess()
        if not self._shares:
            return free
        ((used,),) = self.rows("SELECT coalesce(sum(size), 0) FROM owners WHERE owner = ?", (owner,))
        return (free - int(used)) // 2

    def evict(self) -> None:
        """Deletes the least recently used records of the owner with the most bytes, until all records fit.

        So an owner that has less than an even share of the space loses nothing to the others.
        """
        while (excess := self._excess()) > 0:
            evicted = []
            for id, size in self.rows(_EVICTABLE, (_EVICTED_AT_ONCE,)):
                if excess > 0:
                    evicted.append(id)
                    excess -= size
            if not evicted:
                return
            self.delete(evicted)

    def delete_expired(self) -> list[str]:
        """Deletes the expired records that no open record reads. Returns their ids."""
        rows = self.rows(
            f"DELETE FROM records WHERE expires <= ? AND state NOT IN ({_OPEN}) AND id NOT IN "
            f"(SELECT source FROM records WHERE state IN ({_OPEN}) AND source IS NOT NULL) RETURNING id",
            (time.time(),),
        )
        return [id for (id,) in rows]

    def shrink(self) -> bool:
        """Removes some free pages from the file, if it has many. True if it did.

        The file gets shorter with the next checkpoint of the write-ahead log.
        """
        ((free,),) = self.rows("PRAGMA freelist_count")
        if free > KEPT_PAGES:
            self.rows(f"PRAGMA incremental_vacuum({min(free - KEPT_PAGES, _SHRINK_PAGES)})")
        return bool(free > KEPT_PAGES)

    def _excess(self) -> int:
        ((used,),) = self.rows("SELECT coalesce(sum(size), 0) FROM owners")
        return int(used) - self._max_bytes


def missing_record(kind: str, id: str, param: str | None, code: str = "not_found") -> RequestError:
    return RequestError(
        f"There is no {kind} {id[:100]!r}: it was never stored, it was deleted, or it is older than this "
        "server keeps it.",
        status=404,
        param=param,
        code=code,
    )


def _is_of(kinds: Sequence[str]) -> str:
    return f"kind IN ({', '.join('?' * len(kinds))})"
