"""Collects the head of an HTTP request, and parses it."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

from ....runtime.errors import RequestError
from .limits import Limits

END = b"\r\n\r\n"
_REQUEST_LINE = re.compile(rb"([A-Z]+) ([\x21-\x7e]+) HTTP/(1\.[01])")
_METHODS = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"}
HEADER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):([^\x00-\x08\x0a-\x1f\x7f]*)")
_MAX_DIGITS = 19  # decimal digits of a length that fits into 64 bits


class Head(NamedTuple):
    """The request line and the headers, whose names are in lower case.

    `raw_path` is the path as it was sent; `path` has its %-escapes decoded. `length` is the body's, in bytes;
    None if the body is sent in chunks.
    """

    method: str
    path: str
    raw_path: bytes
    query: bytes
    version: str
    headers: list[tuple[bytes, bytes]]
    length: int | None
    keeps_alive: bool
    expects_continue: bool
    asks_for_websocket: bool

    @property
    def served_path(self) -> str:
        """The path without a slash at its end."""
        return self.path.removesuffix("/") or self.path


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
        head = parse_head(bytes(self._bytes[:end]), self._limits)
        rest = bytes(self._bytes[end + len(END) :])
        self._bytes.clear()
        self._line_ends = False
        return head, rest

    def _skip_empty_lines(self) -> None:
        """Skips empty lines before a head. Some clients send one after a body (RFC 9112, 2.2)."""
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
        if (len(self._bytes) if end < 0 else end) > self._limits.target_bytes + 32:  # 32: method and version
            raise _target_too_long(self._limits)


def read_part(head: bytes) -> tuple[str, str, list[tuple[bytes, bytes]]]:
    """The method, the path without a slash at its end, and the headers in the complete lines of an incomplete
    or malformed head. What is missing is empty."""
    first, *lines = head.split(b"\r\n")
    method, _, rest = first.decode("latin-1").partition(" ")
    path = rest.partition(" ")[0].partition("?")[0]
    pairs = (line.partition(b":") for line in lines[:-1])
    headers = [(name.lower(), value.strip(b" \t")) for name, _, value in pairs]
    return method, path.removesuffix("/") or path, headers


def parse_head(text: bytes, limits: Limits) -> Head:
    """Parses a head without its last, empty line. Raises `RequestError` if it is not strictly HTTP/1.1,
    because parsers could read it in different ways."""
    first, *lines = text.split(b"\r\n")
    if len(first) > limits.target_bytes + 32:
        raise _target_too_long(limits)
    if len(lines) > limits.header_lines:
        raise _too_large(f"The request has more than {limits.header_lines} headers.")
    method, target, version = _parse_request_line(first)
    headers = [_parse_header(line) for line in lines]
    values = _group_values(headers)
    length = _read_length(values)
    if len(values.get(b"host", ())) != 1 and (b"host" in values or version == "1.1"):
        raise malformed("it must have one Host header")
    raw_path, _, query = target.partition(b"?")
    asked, connection = _split_words(values, b"upgrade"), _split_words(values, b"connection")
    is_websocket = b"websocket" in asked and b"upgrade" in connection
    return Head(
        method=method,
        path=unquote(raw_path.decode("ascii")),
        raw_path=raw_path,
        query=query,
        version=version,
        headers=headers,
        length=length,
        keeps_alive=version == "1.1" and b"close" not in connection,
        expects_continue=(
            version == "1.1" and length != 0 and b"100-continue" in _split_words(values, b"expect")
        ),
        asks_for_websocket=is_websocket and method == "GET" and version == "1.1",
    )


def _parse_request_line(line: bytes) -> tuple[str, bytes, str]:
    """The method, the path with the query, and the version."""
    if line.startswith(b"CONNECT "):
        raise RequestError(
            "This server is not a proxy: it does not take CONNECT.", status=405, code="method_not_allowed"
        )
    parts = _REQUEST_LINE.fullmatch(line)
    if parts is None:
        raise malformed("its first line must be a method, a path without spaces and HTTP/1.1")
    method, target = parts[1].decode(), parts[2]
    if method not in _METHODS:
        raise malformed("it does not begin with a method such as GET or POST")
    if target.startswith((b"http://", b"https://")):  # as sent to proxies: the path follows the host
        _, slash, path = target.split(b"://", 1)[1].partition(b"/")
        target = slash + path or b"/"
    if not target.startswith(b"/") and target != b"*":
        raise malformed("its path must begin with a slash")
    return method, target, parts[3].decode()


def _parse_header(line: bytes) -> tuple[bytes, bytes]:
    if line[:1] in (b" ", b"\t"):
        raise malformed("a header is continued on a second line")
    header = HEADER.fullmatch(line)
    if header is None:
        raise malformed("one of its headers is not a name, a colon and a text")
    return header[1].lower(), header[2].strip(b" \t")


def _group_values(headers: list[tuple[bytes, bytes]]) -> dict[bytes, list[bytes]]:
    values: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        values.setdefault(name, []).append(value)
    return values


def _split_words(values: dict[bytes, list[bytes]], name: bytes) -> set[bytes]:
    """The words of a header, in lower case, that are separated by commas."""
    return {word.strip(b" \t").lower() for value in values.get(name, ()) for word in value.split(b",")}


def _read_length(values: dict[bytes, list[bytes]]) -> int | None:
    lengths, codings = values.get(b"content-length", []), values.get(b"transfer-encoding", [])
    if len(lengths) > 1 or len(codings) > 1:
        raise malformed("its content-length or transfer-encoding is given twice")
    if codings:
        if lengths:
            raise malformed("it has both content-length and transfer-encoding")
        if codings[0].lower() != b"chunked":
            raise RequestError(
                "The request's transfer-encoding is not supported: send 'chunked' or a content-length.",
                status=501,
                code="unsupported_transfer_encoding",
            )
        return None
    if not lengths:
        return 0
    if not lengths[0].isdigit() or len(lengths[0]) > _MAX_DIGITS:
        raise malformed("its content-length is not a number of bytes")
    return int(lengths[0])


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
