"""Collects the head of an HTTP request, checks it, and removes requests to change the protocol."""

from __future__ import annotations

from typing import NamedTuple

from ....runtime.errors import RequestError
from .limits import Limits

END = b"\r\n\r\n"
_BODY_LENGTHS = (b"content-length", b"transfer-encoding")
# These ask for another protocol. The parser must not see them; only WebSocket is served, on some paths.
_OFFERS = (b"upgrade", b"http2-settings")
_VERSIONS = (b"HTTP/1.0", b"HTTP/1.1")
_MOST_DIGITS = 19  # of a length that fits into 64 bits


class Head(NamedTuple):
    """`text` is for the parser. `length` is the body's, in bytes; None if the body is sent in chunks."""

    text: bytes
    length: int | None
    asks_for_websocket: bool = False


class HeadReader:
    """Collects the bytes of one head after another, in linear time even if they arrive one by one."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._bytes = bytearray()
        self._line_ends = False

    @property
    def has_begun(self) -> bool:
        return bool(self._bytes)

    @property
    def text(self) -> bytes:
        """The bytes so far."""
        return bytes(self._bytes)

    def add(self, data: bytes) -> tuple[Head, bytes] | None:
        """The head and the bytes after it, or None while it is incomplete. Raises `RequestError`."""
        start = max(0, len(self._bytes) - len(END) + 1)
        self._bytes += data
        if start == 0:
            self._skip_empty_lines()
        end = self._bytes.find(END, start)
        self._check_begin(start)
        if (len(self._bytes) if end < 0 else end) > self._limits.head_bytes:
            raise _too_large(f"The request's headers are larger than {self._limits.head_bytes} bytes.")
        if end < 0:
            return None
        head = checked_head(bytes(self._bytes[:end]), self._limits)
        rest = bytes(self._bytes[end + len(END) :])
        self._bytes.clear()
        self._line_ends = False
        return head, rest

    def _skip_empty_lines(self) -> None:
        """Some clients send an empty line after a body; RFC 9112, 2.2, asks servers to ignore it."""
        while self._bytes.startswith(b"\r\n"):
            del self._bytes[:2]

    def _check_begin(self, start: int) -> None:
        """Refuses at once bytes that can't become a request: other protocols, lines without an end."""
        if self._bytes and not 0x41 <= self._bytes[0] <= 0x5A and self._bytes != b"\r":
            raise malformed("it does not begin with a method such as GET or POST")
        if self._line_ends:
            return
        end = self._bytes.find(b"\n", start)
        if end > 0 and self._bytes[end - 1] != 0x0D:
            raise malformed("its lines must end with a carriage return and a line feed")
        self._line_ends = end >= 0
        if (len(self._bytes) if end < 0 else end) > self._limits.target_bytes + 32:  # method and version too
            raise _target_too_long(self._limits)


def requested_path(head: bytes) -> str:
    """The path in a whole or incomplete head, without a slash at its end; empty if the request line has
    none."""
    words = head.partition(b"\r\n")[0].split(b" ", 2)
    path = words[1].partition(b"?")[0].decode("latin-1") if len(words) > 1 else ""
    return path.removesuffix("/") or path


def requested_origin(head: bytes) -> str:
    """The Origin header in the complete lines of a head; empty if there is none."""
    for line in head.split(b"\r\n")[1:-1]:
        name, _, value = line.partition(b":")
        if name.lower() == b"origin":
            return value.strip(b" \t").decode("latin-1")
    return ""


def checked_head(text: bytes, limits: Limits) -> Head:
    """Raises `RequestError` for a head that parsers could read in different ways."""
    first, *lines = text.split(b"\r\n")
    if len(first) > limits.target_bytes + 32:
        raise _target_too_long(limits)
    if len(lines) > limits.header_lines:
        raise _too_large(f"The request has more than {limits.header_lines} headers.")
    if first.startswith(b"CONNECT "):
        raise RequestError(
            "This server is not a proxy: it does not take CONNECT.", status=405, code="method_not_allowed"
        )
    version = first.rpartition(b" ")[2]
    if version not in _VERSIONS:
        raise malformed("its first line must end with HTTP/1.1")
    kept = [first]
    lengths: dict[bytes, bytes] = {}
    hosts = 0
    asked = {b"upgrade": set[bytes](), b"connection": set[bytes]()}
    for line in lines:
        if line[:1] in (b" ", b"\t"):
            raise malformed("a header is continued on a second line")
        name, _, value = line.partition(b":")
        name = name.lower()
        if name in asked:
            asked[name].update(each.strip(b" \t").lower() for each in value.split(b","))
        if name in _OFFERS:
            continue
        if name in _BODY_LENGTHS:
            if name in lengths:
                raise malformed(f"{name.decode()} is given twice")
            lengths[name] = value.strip(b" \t").lower()
        hosts += name == b"host"
        kept.append(line)
    if hosts > 1 or (not hosts and version == b"HTTP/1.1"):
        raise malformed("it must have one Host header")
    is_websocket = b"websocket" in asked[b"upgrade"] and b"upgrade" in asked[b"connection"]
    asks = is_websocket and first.startswith(b"GET ") and version == b"HTTP/1.1"
    return Head(b"\r\n".join(kept) + END, _body_length(lengths), asks)


def _body_length(lengths: dict[bytes, bytes]) -> int | None:
    length, coding = lengths.get(b"content-length"), lengths.get(b"transfer-encoding")
    if coding is not None:
        if length is not None:
            raise malformed("it has both content-length and transfer-encoding")
        if coding != b"chunked":
            raise RequestError(
                "The request's transfer-encoding is not supported: send 'chunked' or a content-length.",
                status=501,
                code="unsupported_transfer_encoding",
            )
        return None
    if length is None:
        return 0
    if not length.isdigit() or len(length) > _MOST_DIGITS:
        raise malformed("its content-length is not a number of bytes")
    return int(length)


def malformed(why: str) -> RequestError:
    return RequestError(f"This is not a valid HTTP/1.1 request: {why}.", code="invalid_http")


def _too_large(message: str) -> RequestError:
    return RequestError(message, status=431, code="headers_too_large")


def _target_too_long(limits: Limits) -> RequestError:
    return RequestError(
        f"The request's path and query are longer than {limits.target_bytes} bytes.",
        status=414,
        code="url_too_long",
    )
