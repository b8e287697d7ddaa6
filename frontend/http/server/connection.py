"""Reads one connection: heads and bodies within their limits, one request at a time, refusals as JSON."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ....runtime.errors import RequestError
from ..body_writer import BODY_WRITER
from ..upgrade import UPGRADE, Upgrade
from .connections import Connections, too_many_connections
from .head import Head, HeadReader, malformed, requested_origin, requested_path
from .http_chunk_writer import HttpChunkWriter
from .limits import Limits
from .parser import MessageParser
from .raw_answer import RawAnswer
from .refusal import refusal_bytes
from .turns import Turns
from .wire import Wire

ErrorJson: TypeAlias = Callable[[str, RequestError], bytes]
"""Takes the path of a request, empty if it is unknown."""


@dataclass(frozen=True)
class Ingress:
    """The objects and functions that all connections of a server share.

    `always_served` are the paths that are answered at once, and even on connections beyond the limit. Bodies
    on the paths `uploads` may be longer than others; requests on the paths `websockets` may become
    WebSockets. `on_refused` gets the status of each refusal; `progress`
    is called for each new connection and each piece of input. `origin_headers` are the headers for a page of
    an origin, which is empty for other clients.
    """

    limits: Limits
    connections: Connections
    turns: Turns
    always_served: Collection[str]
    on_refused: Callable[[int], None]
    progress: Callable[[], None]
    error_json: ErrorJson
    origin_headers: Callable[[str], Mapping[str, str]] = lambda origin: {}
    uploads: Collection[str] = ()
    websockets: Collection[str] = ()


class Connection(asyncio.Protocol):
    """Passes each head to uvicorn's protocol in one piece once it is complete and checked, then its body.

    Bytes after a message wait until its answer is sent, so one request is served at a time.
    """

    def __init__(self, inner: HttpToolsProtocol, ingress: Ingress) -> None:
        self._inner = inner
        self._ingress = ingress
        self._limits = ingress.limits
        self._connections = ingress.connections
        self._writer = HttpChunkWriter(inner)
        self._parser = MessageParser(inner, self._answered)
        inner.parser = self._parser  # type: ignore[assignment]
        self._end_after_answer = inner.shutdown
        inner.shutdown = self._shut_down  # type: ignore[method-assign]
        self._head = HeadReader(ingress.limits)
        self._head_from: float | None = None  # when the wait for a head began; it may last `head_seconds`
        self._body: _Body | None = None
        self._ahead = b""  # bytes after a message that is being answered, or after a head that waits
        self._next: Head | None = None  # the head of a request that waits for its turn
        self._keep_alive = False  # after the answer to the request that is being read
        self._is_extra = False  # beyond the limit: only `always_served` paths are answered
        self._refusal: RequestError | None = None
        self._upgrade: Upgrade | None = None  # of a request that asked for a WebSocket
        self._ending_at: float | None = None  # when such a connection was told to end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._loop = asyncio.get_running_loop()
        self._head_from = self._loop.time()
        self._wire = Wire(
            cast(asyncio.Transport, transport), self._limits, self._loop.time, self._expects_input
        )
        self._inner.connection_made(self._wire)
        self._is_extra = not self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.remove(self)
        self._inner.connection_lost(exc)
        self._release()

    def _release(self) -> None:
        """Breaks the reference cycles of the connection, so that its objects and those of its last request,
        about 70, are freed as soon as the answer's task ends. Otherwise the garbage collector would have to
        free them; for 300 connections that stops all streams for 15 ms."""
        self._parser.release()
        self._wire.release()
        vars(self._inner).pop("shutdown")
        self._upgrade = None
        cycle = self._inner.cycle
        if cycle is not None:
            scope = cast(dict[str, Any], cycle.scope)
            scope.pop(BODY_WRITER, None)
            scope.pop(UPGRADE, None)
            vars(cycle).pop("send", None)  # of RawAnswer

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def eof_received(self) -> None:
        self._wire.end_of_input()

    def data_received(self, data: bytes) -> None:
        self._ingress.progress()
        self._take(data)

    def check(self, now: float) -> None:
        """Ends the connection if one of its deadlines has passed."""
        self._wire.check(now)
        if self._wire.is_closing():
            return
        if self._ending_at is not None and now - self._ending_at > self._limits.linger_seconds:
            self._wire.close()
        elif self._body is not None:
            if self._inner.flow.read_paused:
                self._body.begin_step(now)
            elif self._body.is_unneeded(now, self._limits):
                self._wire.close()
            elif self._body.is_too_slow(now, self._limits):
                self._refuse(_timeout("body", self._limits.body_seconds))
        elif self._head_from is not None:
            seconds = self._limits.linger_seconds if self._is_extra else self._limits.head_seconds
            if now - self._head_from <= seconds:
                return
            if self._head.has_begun:
                self._refuse(_timeout("headers", seconds))
            else:
                self._wire.close()

    def _shut_down(self) -> None:
        """Stops the connection after the request that is being read or answered."""
        self._keep_alive = False
        self._end_after_answer()
        self._end_upgrade()

    def evict(self, error: RequestError) -> None:
        if self._upgrade is not None:
            self._end_upgrade()
        elif self._head.has_begun or self._body is not None or self._next is not None:
            self._refuse(error)
        else:
            self._wire.close()

    def _take(self, data: bytes) -> None:
        while data and not self._wire.is_closing():
            if self._upgrade is not None:
                self._inner.on_body(data)
                return
            if self._body is not None:
                data = self._take_body(self._body, data)
            elif self._is_answering or self._next is not None:
                self._ahead += data
                if len(self._ahead) > self._limits.ahead_bytes:
                    self._wire.pause_reading()
                return
            else:
                data = self._take_head(data)

    def _taken_ahead(self) -> bytes:
        ahead, self._ahead = self._ahead, b""
        self._wire.resume_reading()
        return ahead

    def _take_head(self, data: bytes) -> bytes:
        """Returns the bytes after the head."""
        if self._head_from is None:
            self._head_from = self._loop.time()
            self._inner.data_received(b"")  # tells uvicorn that the connection is busy
        try:
            found = self._head.add(data)
        except RequestError as error:
            self._refuse(error)
            return b""
        if found is None:
            return b""
        head, rest = found
        self._head_from = None
        if requested_path(head.text) not in self._ingress.always_served:
            if self._is_extra:
                self._refuse(too_many_connections(), head.text)
                return b""
            if not self._ingress.turns.take(self._turn_has_come):
                self._next = head
                return rest
        self._begin(head)
        return rest

    def _turn_has_come(self) -> None:
        head, self._next = self._next, None
        if head is not None and not self._wire.is_closing():
            self._begin(head)
            self._take(self._taken_ahead())

    def _begin(self, head: Head) -> None:
        self._parser.begin()
        self._inner.data_received(head.text)
        if self._parser.error is not None:
            self._refuse(malformed(str(self._parser.error)), head.text)
            return
        cycle = self._inner.cycle
        cast(dict[str, Any], cycle.scope)[BODY_WRITER] = self._writer
        self._keep_alive = cycle.keep_alive and not self._is_extra
        # An answer sent before the end of a body in chunks closes the connection: the next request could
        # arrive in one piece with that end, which only the parser knows.
        cycle.keep_alive = self._keep_alive and (self._parser.is_complete or head.length is not None)
        if self._parser.is_complete:
            self._connections.has_request(self)
            if head.asks_for_websocket and requested_path(head.text) in self._ingress.websockets:
                self._offer_upgrade()
        else:
            is_upload = requested_path(head.text) in self._ingress.uploads
            self._body = _Body(head.length, self._loop.time(), is_upload)

    def _offer_upgrade(self) -> None:
        """Lets the application answer with 101. All further bytes are for it, and the answer is the last."""
        cycle = self._inner.cycle
        self._upgrade = Upgrade(asyncio.Event(), self._set_busy)
        scope = cast(dict[str, Any], cycle.scope)
        scope[UPGRADE] = self._upgrade
        del scope[BODY_WRITER]  # which would write HTTP's chunks into the WebSocket
        cycle.send = RawAnswer(cycle).send  # type: ignore[method-assign, assignment]
        cycle.more_body = True
        self._keep_alive = cycle.keep_alive = False

    def _end_upgrade(self) -> None:
        if self._upgrade is not None and self._ending_at is None:
            self._ending_at = self._loop.time()
            self._upgrade.ending.set()

    def _set_busy(self, busy: bool) -> None:
        if busy:
            self._connections.has_request(self)
        else:
            self._connections.waits(self)

    def _take_body(self, body: _Body, data: bytes) -> bytes:
        """Returns the bytes after the body."""
        piece, rest = (data, b"") if body.left is None else (data[: body.left], data[body.left :])
        body.take(len(piece))
        most = self._limits.upload_bytes if body.is_upload else self._limits.message_bytes
        if body.received > most:
            self._refuse(_too_large(most))
            return b""
        self._inner.data_received(piece)
        if self._parser.error is not None:
            self._refuse(malformed(str(self._parser.error)))
        elif self._parser.is_complete:
            self._end_body(body)
        elif body.left == 0:
            self._refuse(malformed("its body is longer than it says"))
        return rest

    def _end_body(self, body: _Body) -> None:
        self._body = None
        if not self._is_answering:  # the answer was sent before the body was complete
            self._head_from = self._loop.time()
            return
        self._connections.has_request(self)
        if body.left is None and not self._inner.cycle.response_started:
            self._inner.cycle.keep_alive = self._keep_alive and not self._parser.has_next

    def _answered(self) -> None:
        self._inner.on_response_complete()
        if self._body is not None:
            self._body.answered_at = self._loop.time()
            return
        self._connections.waits(self)
        if self._ahead:
            self._take(self._taken_ahead())

    @property
    def _is_answering(self) -> bool:
        cycle = self._inner.cycle
        return cycle is not None and not cycle.response_complete

    def _asked(self) -> tuple[str, str]:
        """The path and the origin of the request whose head or body is being read; each empty if unknown."""
        if self._body is not None:
            scope = self._inner.cycle.scope
            return scope["path"], dict(scope["headers"]).get(b"origin", b"").decode("latin-1")
        head = self._head.text if self._next is None else self._next.text
        return requested_path(head), requested_origin(head)

    def _expects_input(self) -> bool:
        is_reading = self._body is not None or self._head.has_begun
        return is_reading or self._refusal is not None or self._upgrade is not None

    def _refuse(self, error: RequestError, head: bytes | None = None) -> None:
        """Sends the refusal, unless the request has an answer already, and closes the connection.

        `head` is the request's, if it is no longer being read.
        """
        self._refusal = error
        cycle = self._inner.cycle
        if self._body is None or not cycle.response_started:
            self._ingress.on_refused(error.status)
            asked = self._asked() if head is None else (requested_path(head), requested_origin(head))
            path, origin = asked
            body = self._ingress.error_json(path, error)
            self._wire.write(refusal_bytes(error, body, self._ingress.origin_headers(origin)))
        self._wire.close()
        if self._is_answering:
            cycle.disconnected = True
            cycle.message_event.set()


class _Body:
    """Counts the bytes of a body. `left` bytes are missing; it is None for a body in chunks, whose end the
    parser finds. An upload is not held in memory, so it may be slow however long it is."""

    def __init__(self, left: int | None, now: float, is_upload: bool) -> None:
        self.left = left
        self.is_upload = is_upload
        self.received = 0
        self.answered_at: float | None = None
        self.begin_step(now)

    def begin_step(self, now: float) -> None:
        self._step_at = now
        self._step_from = self.received

    def take(self, size: int) -> None:
        self.received += size
        if self.left is not None:
            self.left -= size

    def is_unneeded(self, now: float, limits: Limits) -> bool:
        """True if the answer was sent early, and the rest of the body has not arrived soon after it."""
        return self.answered_at is not None and now - self.answered_at > limits.head_seconds

    def is_too_slow(self, now: float, limits: Limits) -> bool:
        if now - self._step_at <= limits.body_seconds:
            return False
        share = 0 if self.is_upload else self._step_from // limits.body_step_part
        least = max(limits.body_step_bytes, share)
        if self.received - self._step_from < least:
            return True
        self.begin_step(now)
        return False


def _timeout(part: str, seconds: float) -> RequestError:
    return RequestError(
        f"The request's {part} did not arrive in time: the server waited for {seconds:g} seconds.",
        status=408,
        code="request_timeout",
    )


def _too_large(most: int) -> RequestError:
    return RequestError(
        f"The request's body takes more than {most} bytes on the wire.",
        status=413,
        code="body_too_large",
    )
