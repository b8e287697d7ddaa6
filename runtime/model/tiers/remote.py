"""Pages in a store that many servers share, by the Redis protocol."""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Sequence

import redis

from .disk import StoredPage

PREFIX = b"arbora:1:"  # with the version of the values' format
CHECKSUM_BYTES = 4
ANSWER_SECONDS = 2.0
SILENCE_SECONDS = 30.0
log = logging.getLogger(__name__)


class RemoteStore:
    """Pages as values under their namespace and key. How many, and which make room, the server decides.

    When the server fails or is slow it is left in peace for a while: pages are not found there and not kept
    there. One that is full, or takes nothing for another reason, is still read. No method raises for that.
    """

    def __init__(self, url: str) -> None:
        """Raises ValueError for a URL that is none."""
        self._server = redis.Redis.from_url(
            url, socket_timeout=ANSWER_SECONDS, socket_connect_timeout=ANSWER_SECONDS
        )
        self._silent_until = 0.0
        self._full_until = 0.0

    def read(self, namespace: str, key: bytes, content: memoryview) -> bool:
        """Fills `content`; False if the page isn't there whole."""
        if time.monotonic() < self._silent_until:
            return False
        try:
            value = self._server.get(name(namespace, key))
        except redis.RedisError as error:
            self._leave_in_peace(error)
            return False
        if not isinstance(value, bytes):
            return False
        stored = memoryview(value)[CHECKSUM_BYTES:]
        if len(stored) != len(content) or value[:CHECKSUM_BYTES] != _checksum(key, stored):
            log.warning("a page in the remote cache is damaged; it is computed again")
            return False
        content[:] = stored
        return True

    def write(self, pages: Sequence[StoredPage]) -> None:
        """Takes in pages that it lacks, in the order in which they may go."""
        if time.monotonic() < max(self._silent_until, self._full_until):
            return
        try:
            for page in pages:
                at = name(page.namespace, page.key)
                if not self._server.exists(at):
                    self._server.set(at, _checksum(page.key, page.content) + page.content)
        except redis.ResponseError as error:
            log.warning("the remote cache takes no pages for %.0f s: %s", SILENCE_SECONDS, error)
            self._full_until = time.monotonic() + SILENCE_SECONDS
        except redis.RedisError as error:
            self._leave_in_peace(error)

    def forget(self, scope: str, namespace: str | None) -> int:
        """Gives up what is of `namespace`, or of all that begin with `scope`; how many pages that were."""
        if namespace is None:
            pattern = PREFIX + _escaped(_spelled(scope)) + b"*"
        else:
            pattern = PREFIX + _escaped(_spelled(namespace)) + b":*"
        forgotten = 0
        try:
            for doomed in self._server.scan_iter(match=pattern, count=1000):
                forgotten += int(self._server.unlink(doomed))
        except redis.RedisError as error:
            self._leave_in_peace(error)
        return forgotten

    def discard(self, namespace: str, keys: Sequence[bytes]) -> None:
        """Gives up pages of a namespace."""
        try:
            for key in keys:
                self._server.unlink(name(namespace, key))
        except redis.RedisError as error:
            self._leave_in_peace(error)

    def _leave_in_peace(self, error: redis.RedisError) -> None:
        log.warning("the remote cache is not used for %.0f s: %s", SILENCE_SECONDS, error)
        self._silent_until = time.monotonic() + SILENCE_SECONDS


def name(namespace: str, key: bytes) -> bytes:
    """What a page is called there."""
    return PREFIX + _spelled(namespace) + b":" + key.hex().encode()


def _spelled(namespace: str) -> bytes:
    """Without colons, so that no namespace's names begin like another's."""
    return namespace.replace("%", "%25").replace(":", "%3A").encode()


def _escaped(text: bytes) -> bytes:
    """For a pattern that means just this."""
    return b"".join(b"\\" + bytes([byte]) if byte in b"*?[]\\^-" else bytes([byte]) for byte in text)


def _checksum(key: bytes, content: bytes | memoryview) -> bytes:
    return zlib.crc32(content, zlib.crc32(key)).to_bytes(CHECKSUM_BYTES, "big")
