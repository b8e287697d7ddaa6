"""Pages in a store that many servers share, by the Redis protocol."""

from __future__ import annotations

import contextlib
import logging
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from .disk import StoredPage
from .timed_sockets import Deadline, TimedSocket

PREFIX = b"arbora:1:"  # prefix of all names, with the version of the values' format
CHECKSUM_BYTES = 4
NAMES_PER_CALL = 1000
ANSWER_SECONDS = 2.0
"""time limit of a whole call"""
SILENCE_SECONDS = 30.0
T = TypeVar("T")
log = logging.getLogger(__name__)


class RemoteStore:
    """Pages as values under namespace and key. The server decides how many it keeps, and which it evicts.

    A failed or slow read pauses reading for a while, a failed or slow write pauses writing. While reading is
    paused no pages are found, while writing is paused none are stored. A full server is still read. No method
    raises for these reasons. Calls that prompts wait for take at most `ANSWER_SECONDS`, even if the answer
    arrives slowly.
    """

    def __init__(self, url: str, part: str = "") -> None:
        """Raises ValueError for an invalid URL. part: which part of each page this store has, if pages have
        parts"""
        self._part = f":{part}".encode() if part else b""
        again = Retry(
            NoBackoff(), 1, supported_errors=(redis.ConnectionError,)
        )  # tries again if a server was restarted
        self._server = redis.Redis.from_url(
            url,
            socket_timeout=ANSWER_SECONDS,
            socket_connect_timeout=ANSWER_SECONDS / 2,
            redis_connect_func=self._begin,
            retry=again,
        )
        self._deadline = Deadline()
        self._reading = _Use("is not read")
        self._writing = _Use("takes no pages")

    def count(self, namespace: str, keys: Sequence[bytes]) -> int:
        """How many of the first pages are stored."""

        def count() -> int:
            last_start = time.monotonic() + ANSWER_SECONDS / 2
            for at in range(0, len(keys), NAMES_PER_CALL):
                if at and time.monotonic() > last_start:
                    return at
                names = [name(namespace, key, self._part) for key in keys[at : at + NAMES_PER_CALL]]
                there = self._all(names, lambda pipe, each: pipe.exists(each))
                if not all(there):
                    return at + there.index(0)
            return len(keys)

        return self._ask(self._reading, count, 0)

    def find(self, namespace: str, keys: Sequence[bytes]) -> set[bytes]:
        """The keys that are stored, in one round trip."""
        names = [name(namespace, key, self._part) for key in keys]
        there = self._ask(
            self._reading, lambda: self._all(names, lambda pipe, each: pipe.exists(each)), [0] * len(keys)
        )
        return {key for key, found in zip(keys, there, strict=True) if found}

    def read(self, namespace: str, wanted: Mapping[bytes, memoryview]) -> set[bytes]:
        """Fills contents by key; returns the keys of the pages that were found whole."""
        whole: set[bytes] = set()

        def read() -> None:
            names = {key: name(namespace, key, self._part) for key in wanted}
            values: list[Any] = self._server.mget(names.values())
            for key, value in zip(wanted, values, strict=True):
                if value is not None and _unpack(key, value, wanted[key]):
                    whole.add(key)
            self._unlink_damaged(names[key] for key in wanted if key not in whole)

        self._ask(self._reading, read, None)
        return whole

    def write(self, pages: Sequence[StoredPage]) -> None:
        """Stores pages that the server doesn't have, in the order in which they may be evicted."""
        if pages:
            self._ask(self._writing, lambda: self._write(pages), None)

    def forget(self, scope: str, namespace: str | None) -> int | None:
        """Removes the pages of `namespace`, or of all namespaces in `scope`. Returns the number of pages.

        None: the server failed and still has pages.
        """
        if namespace is None:
            pattern = PREFIX + _escape(_escaped_namespace(scope)) + b"*"
        else:
            pattern = PREFIX + _escape(_escaped_namespace(namespace)) + b":*"
        return self._ask(self._reading, lambda: self._unlink(pattern), None, insist=True)

    def discard(self, namespace: str, keys: Sequence[bytes]) -> None:
        """Removes pages of a namespace."""
        names = [name(namespace, key, self._part) for key in keys]
        self._ask(
            self._reading, lambda: self._all(names, lambda pipe, each: pipe.unlink(each)), [], insist=True
        )

    def _begin(self, connection: Any) -> None:
        """Prepares a new connection; called for each one."""
        connection._sock = TimedSocket(connection._sock, self._deadline)
        connection.on_connect()

    def _unlink_damaged(self, names: Iterable[bytes]) -> None:
        """Removes damaged values, so that they are written again; a missing one may have another type."""
        if damaged := list(names):
            with contextlib.suppress(redis.ResponseError):  # the server may be read-only for us
                self._server.unlink(*damaged)

    def _write(self, pages: Sequence[StoredPage]) -> None:
        pages_at = {name(page.namespace, page.key, self._part): page for page in pages}
        there = self._all(list(pages_at), lambda pipe, at: pipe.exists(at))
        lacking = [at for at, found in zip(pages_at, there, strict=True) if not found]
        self._all(lacking, lambda pipe, at: pipe.set(at, _pack(pages_at[at])))

    def _unlink(self, pattern: bytes) -> int:
        """Removes names by pattern. Each round trip has a deadline, but not all: there may be very many."""
        forgotten, cursor = 0, None
        while cursor != 0:
            self._deadline.set(ANSWER_SECONDS)
            cursor, names = self._server.scan(cursor or 0, match=pattern, count=NAMES_PER_CALL)
            forgotten += int(self._server.unlink(*names)) if names else 0
        return forgotten

    def _all(self, names: Sequence[bytes], command: Callable[[Any, bytes], object]) -> list[Any]:
        """The answers to a command for each of `names`, in one round trip. Raises the first error."""
        pipe = self._server.pipeline(transaction=False)
        for each in names:
            command(pipe, each)
        return pipe.execute() if names else []

    def _ask(self, use: _Use, work: Callable[[], T], otherwise: T, insist: bool = False) -> T:
        """The result of `work`, or `otherwise` if the server fails or, unless `insist` is true, is paused."""
        if time.monotonic() < use.next and not insist:
            return otherwise
        self._deadline.set(ANSWER_SECONDS)
        try:
            return work()
        except (redis.RedisError, OSError) as error:
            use.pause(str(error))
            return otherwise


class _Use:
    """Pauses of reading or of writing. `next`: the end of the pause, on the monotonic clock."""

    def __init__(self, paused: str) -> None:
        self._paused = paused
        self.next = 0.0

    def pause(self, reason: str) -> None:
        log.warning("the remote cache %s for %.0f s: %s", self._paused, SILENCE_SECONDS, reason)
        self.next = time.monotonic() + SILENCE_SECONDS


def name(namespace: str, key: bytes, part: bytes = b"") -> bytes:
    """The name of a page, or of a part of it, on the server."""
    return PREFIX + _escaped_namespace(namespace) + b":" + key.hex().encode() + part


def _escaped_namespace(namespace: str) -> bytes:
    """The namespace without colons, so that no namespace's names are a prefix of another's."""
    return namespace.replace("%", "%25").replace(":", "%3A").encode()


def _escape(text: bytes) -> bytes:
    """Escapes text in a pattern."""
    return b"".join(b"\\" + bytes([byte]) if byte in b"*?[]\\^-" else bytes([byte]) for byte in text)


def _pack(page: StoredPage) -> bytes:
    return _checksum(page.key, page.content) + page.content


def _unpack(key: bytes, value: bytes, content: memoryview) -> bool:
    """Fills `content`; False if the value is not this page."""
    stored = memoryview(value)[CHECKSUM_BYTES:]
    if len(stored) != len(content) or value[:CHECKSUM_BYTES] != _checksum(key, stored):
        log.warning("a page in the remote cache is damaged; it is computed again")
        return False
    content[:] = stored
    return True


def _checksum(key: bytes, content: bytes | memoryview) -> bytes:
    return zlib.crc32(content, zlib.crc32(key)).to_bytes(CHECKSUM_BYTES, "big")
