"""One request and its answer, as ASGI's `receive` and `send`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import TypeAlias

from starlette.types import Message

from ...core.attempts import PartWriter
from .head import Head
from .limited_transport import LimitedTransport

BODY_WRITER = "arbora.body_writer"
"""Key in the ASGI scope: the request's `BodyWriter`. The scope of a WebSocket has none."""

UPGRADE = "arbora.upgrade"
"""Key in the ASGI scope of a request that asks for a WebSocket: its `Upgrade`."""

REFUSAL = "arbora.refusal"
"""Key in the ASGI scope of a request that the connection has refused while its body was read: the error."""

BodyWriter: TypeAlias = PartWriter[bytes]
"""Writes a part of a streamed answer at once, so that a token needs no task. `send` must have sent the
headers before, and it sends the last part. The writer is not ready while the client reads too slowly: then
`send` waits."""

Headers: TypeAlias = Iterable[tuple[bytes, bytes]]
MAX_UNREAD_BYTES = 64 * 1024  # bytes of a body that wait for the application
_BODILESS = (204, 304)
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


@dataclass(frozen=True)
class Upgrade:
    """After an answer with the status 101, the request's body is every byte that the client sends, and the
    answer's body is sent without HTTP's framing. The connection closes with the answer.

    `ending` is set when the connection must close: the server stops, or a new connection needs its place,
    which only happens after `set_busy(False)`.
    """

    ending: asyncio.Event
    set_busy: Callable[[bool], None]


class Exchange:
    """The request with the head `head`, and its answer, of which this is also the `BodyWriter`.

    `on_complete` is called once the answer is sent. Unless `keeps_alive`, the connection then closes.
    """

    def __init__(
        self, transport: LimitedTransport, head: Head, keeps_alive: bool, on_complete: Callable[[], None]
    ) -> None:
        self.keeps_alive = keeps_alive
        self.is_started = False
        self.is_complete = False
        self._transport = transport
        self._on_complete = on_complete
        self._is_disconnected = False
        self._expects_continue = head.expects_continue
        self._body = bytearray()
        self._has_whole_body = False
        self._news = asyncio.Event()  # set when the body grows, or the answer or the connection ends
        self._may_have_chunks = head.version == "1.1"
        self._has_chunks = False
        self._has_body = head.method != "HEAD"  # whether the answer has a body
        self._left: int | None = None  # bytes of the answer that its content-length promises

    def add_body(self, piece: bytes, is_last: bool) -> None:
        """Adds a piece of the request's body. Reading stops while the application has much to take, but not
        after the body: only a connection that is read shows that the client leaves."""
        if self.is_complete:
            return
        self._body += piece
        self._has_whole_body = is_last
        if is_last:
            self._transport.resume_reading()
        elif len(self._body) > MAX_UNREAD_BYTES:
            self._transport.pause_reading()
        self._news.set()

    def disconnect(self) -> None:
        """Tells the application that the client has left."""
        self._is_disconnected = True
        self._news.set()

    def fail(self) -> None:
        """Sends the status 500, unless an answer has begun."""
        if not self.is_started:
            self._transport.write(render_head(500, [(b"content-length", b"0"), (b"connection", b"close")]))

    async def receive(self) -> Message:
        if self._expects_continue:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._expects_continue = False
        if not self._is_over:
            if not self._has_whole_body:
                self._transport.resume_reading()
            await self._news.wait()
            self._news.clear()
        if self._is_over:
            return {"type": "http.disconnect"}
        body, self._body = bytes(self._body), bytearray()
        return {"type": "http.request", "body": body, "more_body": not self._has_whole_body}

    async def send(self, message: Message) -> None:
        if self._transport.is_write_paused and not self._is_disconnected:
            await self._transport.drain()
        if self._is_disconnected:
            return
        if message["type"] == "http.response.start":
            self._start(message["status"], message.get("headers", ()))
        else:
            self._send_part(message.get("body", b""), not message.get("more_body", False))

    @property
    def is_ready(self) -> bool:
        return not self._transport.is_write_paused

    def write(self, part: bytes) -> None:
        if not self._is_disconnected:
            self._transport.write(self._frame(part))

    def _frame(self, part: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(part), part) if self._has_chunks else part

    @property
    def _is_over(self) -> bool:
        return self._is_disconnected or self.is_complete

    def _start(self, status: int, headers: Headers) -> None:
        """Sends the head. A body without a length is sent in chunks, or ends with the connection."""
        assert not self.is_started
        self.is_started = True
        self._expects_continue = False
        sent = list(headers)
        length = dict(sent).get(b"content-length")
        self._has_body = self._has_body and status not in _BODILESS
        if length is not None:
            self._left = int(length)
        elif status != HTTPStatus.SWITCHING_PROTOCOLS and self._has_body and self._may_have_chunks:
            self._has_chunks = True
            sent.append((b"transfer-encoding", b"chunked"))
        if not self.keeps_alive and status != HTTPStatus.SWITCHING_PROTOCOLS:
            sent.append((b"connection", b"close"))
        self._transport.write(render_head(status, sent))

    def _send_part(self, body: bytes, is_last: bool) -> None:
        assert self.is_started and not self.is_complete
        if self._has_body and self._left is not None:
            self._left -= len(body)
            if self._left < 0 or (is_last and self._left > 0):
                raise RuntimeError(f"the answer's content-length is wrong by {abs(self._left)} bytes")
        if self._has_body and body:
            self._transport.write(self._frame(body))
        if is_last:
            if self._has_chunks:
                self._transport.write(b"0\r\n\r\n")
            self.is_complete = True
            self._news.set()
            self._on_complete()


def render_head(status: int, headers: Headers) -> bytes:
    """The first line and the headers of an answer, with the date."""
    lines = [_status_line(status), _date_line(int(time.time()))]
    lines += [b"%b: %b" % header for header in headers]
    head = b"\r\n".join([*lines, b"", b""])
    if head.count(b"\n") != len(lines) + 1:
        raise RuntimeError("a header has a line break, and would become two")
    return head


@lru_cache
def _status_line(status: int) -> bytes:
    return f"HTTP/1.1 {status} {_PHRASES.get(status, '')}".encode()


@lru_cache(maxsize=1)
def _date_line(second: int) -> bytes:
    return f"date: {formatdate(second, usegmt=True)}".encode()
