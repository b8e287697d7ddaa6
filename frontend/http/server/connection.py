"""Reads one connection: heads and bodies within their limits, one request at a time, refusals as JSON."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TypeAlias, cast

from starlette.types import ASGIApp, Scope

from ....runtime.errors import RequestError
from ...core.replica.engine_client import shutting_down
from .connections import Connections, StartLimit, too_many_connections
from .exchange import BODY_WRITER, REFUSAL, UPGRADE, Exchange, Headers, Upgrade, render_head
from .head import Head, HeadReader, read_part
from .limited_transport import LimitedTransport
from .limits import Limits
from .request_body import RequestBody

_log = logging.getLogger(__name__)
RenderError: TypeAlias = Callable[[str, Headers, RequestError], tuple[int, Headers, bytes]]
"""Takes the path of a request, empty if it is unknown, and the headers that are known. Returns the status,
the headers and the body of the refusal."""
LogRefusal: TypeAlias = Callable[[str, str, int, Headers, RequestError], None]
"""Takes the method and the path of a request, empty if they are unknown, and the status, the headers and the
error of its refusal."""


@dataclass(frozen=True)
class ServerSettings:
    """What the connections of a server must know about its application.

    `always_served` are the paths that are answered at once, and even on connections beyond the limit. Bodies
    on the paths `uploads` may be longer than others; requests on the paths `websockets` may become
    WebSockets. `on_refused` gets the status of each refusal, whose answer `render_error` makes; `log_refusal`
    gets those of requests that the application does not see. `progress` is called for each new connection,
    each piece of input and each request that starts.
    """

    limits: Limits
    always_served: Collection[str]
    on_refused: Callable[[int], None]
    progress: Callable[[], None]
    render_error: RenderError
    log_refusal: LogRefusal = lambda method, path, status, headers, error: None
    uploads: Collection[str] = ()
    websockets: Collection[str] = ()


class Connection(asyncio.BufferedProtocol):
    """Calls the application with each request once its head is complete, and passes the body on as it comes.

    Bytes after a message wait until its answer is sent, so one request is served at a time. `tasks` are the
    calls of the application that have not returned. All connections of an event loop may share `buffer`,
    because each empties it before another fills it.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        connections: Connections,
        starts: StartLimit,
        tasks: set[asyncio.Task[None]],
        buffer: memoryview,
    ) -> None:
        self._app = app
        self._settings = settings
        self._limits = settings.limits
        self._connections = connections
        self._starts = starts
        self._tasks = tasks
        self._buffer = buffer
        self._head_reader = HeadReader(settings.limits)
        self._deadline: float | None = None  # when the awaited head must be complete
        self._head: Head | None = None  # the request's head until its answer is complete
        self._waits_for_start = False
        self._body: RequestBody | None = None  # the body that is being read
        self._exchange: Exchange | None = None  # the request that is read or answered
        self._request: Scope = {}  # the scope of that request
        self._ahead = b""  # bytes after a request that waits for its start or is being answered
        self._is_extra = False  # whether it exceeds the limit, so that only `always_served` paths work
        self._is_refused = False
        self._upgrade: Upgrade | None = None  # set if the request asked for a WebSocket
        self._ending_at: float | None = None  # when the WebSocket was told to end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = LimitedTransport(cast(asyncio.Transport, transport), self._limits, self._loop)
        self._client = self._transport.client_address()
        self._is_extra = not self._connections.add(self)
        self._head_seconds = self._limits.linger_seconds if self._is_extra else self._limits.head_seconds
        self._deadline = self._loop.time() + self._head_seconds

    def connection_lost(self, exc: Exception | None) -> None:
        """Also breaks the reference cycles of the connection. Otherwise the garbage collector would have to
        free its objects; for 300 connections that stops all streams for 15 ms."""
        self._connections.remove(self)
        self._transport.resume_writing()
        if self._exchange is not None:
            self._exchange.disconnect()
        self._exchange = self._upgrade = None
        self._request = {}

    def pause_writing(self) -> None:
        self._transport.pause_writing()

    def resume_writing(self) -> None:
        self._transport.resume_writing()

    def eof_received(self) -> None:
        self._transport.end_of_input()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._settings.progress()
        self._take(bytes(self._buffer[:nbytes]))
        if nbytes == len(self._buffer):
            self._transport.rest_from_reading()

    def check(self, now: float) -> None:
        """Ends the connection if one of its deadlines has passed."""
        self._transport.check(now)
        if self._transport.is_closing():
            return
        if self._ending_at is not None and now - self._ending_at > self._limits.linger_seconds:
            self._close()
        elif self._body is not None:
            if self._transport.is_read_paused:
                self._body.begin_step(now)
            elif self._body.is_unneeded(now):
                self._close()
            elif self._body.is_too_slow(now):
                self._refuse(_timeout("body", self._limits.body_seconds))
        elif self._deadline is not None and now > self._deadline:
            if self._head_reader.has_begun:
                self._refuse(_timeout("headers", self._head_seconds))
            else:
                self._close()

    def stop(self) -> None:
        """Closes the connection after the request that is being read or answered. Refuses a request that has
        not started."""
        if self._exchange is not None and not self._exchange.is_complete:
            self._exchange.keeps_alive = False
            self._end_upgrade()
        elif self._head_reader.has_begun or self._waits_for_start:
            self._refuse(shutting_down())
        else:
            self._close()

    def evict(self, error: RequestError) -> None:
        if self._upgrade is not None:
            self._end_upgrade()
        elif self._head_reader.has_begun or self._body is not None or self._waits_for_start:
            self._refuse(error)
        else:
            self._close()

    def _take(self, data: bytes) -> None:
        while data and not self._transport.is_closing():
            if self._upgrade is not None and self._exchange is not None:
                self._exchange.add_body(data, is_last=False)
                return
            if self._body is not None:
                data = self._take_body(self._body, data)
            elif self._head is not None:
                self._ahead += data
                if len(self._ahead) > self._limits.ahead_bytes:
                    self._transport.pause_reading()
                return
            else:
                data = self._take_head(data)

    def _take_head(self, data: bytes) -> bytes:
        """Reads a part of the head. Returns the bytes after the head."""
        if not self._head_reader.has_begun:
            latest = self._loop.time() + self._head_seconds
            self._deadline = latest if self._deadline is None else min(self._deadline, latest)
        try:
            found = self._head_reader.add(data)
        except RequestError as error:
            self._refuse(error)
            return b""
        if found is None:
            return b""
        self._deadline = None
        self._head, rest = found
        if self._head.served_path in self._settings.always_served:
            self._start(self._head)
        elif self._is_extra:
            self._refuse(too_many_connections())
        elif self._starts.take(self._start_waiting):
            self._start(self._head)
        else:
            self._waits_for_start = True
        return rest

    def _start_waiting(self) -> None:
        self._waits_for_start = False
        if self._head is not None and not self._transport.is_closing():
            self._start(self._head)
            self._take_ahead()

    def _take_ahead(self) -> None:
        ahead, self._ahead = self._ahead, b""
        self._transport.resume_reading()
        self._take(ahead)

    def _start(self, head: Head) -> None:
        """Calls the application with the request."""
        exchange = Exchange(
            self._transport, head, head.keeps_alive and not self._is_extra, self._end_exchange
        )
        scope = self._scope(head)
        self._exchange, self._request = exchange, scope
        if head.length == 0 and head.asks_for_websocket and head.served_path in self._settings.websockets:
            # All further bytes are for the application, and its answer is the last of the connection.
            self._upgrade = scope[UPGRADE] = Upgrade(asyncio.Event(), self._set_busy)
            exchange.keeps_alive = False
        else:
            scope[BODY_WRITER] = exchange
        if head.length == 0:
            self._connections.has_request(self)
            if self._upgrade is None:
                exchange.add_body(b"", is_last=True)
        else:
            is_upload = head.served_path in self._settings.uploads
            self._body = RequestBody(head.length, self._limits, self._loop.time(), is_upload)
        self._settings.progress()
        task = self._loop.create_task(self._answer(exchange, scope))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _scope(self, head: Head) -> Scope:
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": head.version,
            "method": head.method,
            "scheme": "https" if self._transport.is_tls else "http",
            "path": head.path,
            "raw_path": head.raw_path,
            "query_string": head.query,
            "root_path": "",
            "headers": head.headers,
            "client": self._client,
        }

    async def _answer(self, exchange: Exchange, scope: Scope) -> None:
        try:
            await self._app(scope, exchange.receive, exchange.send)
        except Exception:
            _log.exception("The application failed")
        if not exchange.is_complete:
            exchange.fail()
            self._close()

    def _end_upgrade(self) -> None:
        if self._upgrade is not None and self._ending_at is None:
            self._ending_at = self._loop.time()
            self._upgrade.ending.set()

    def _set_busy(self, busy: bool) -> None:
        if busy:
            self._connections.has_request(self)
        else:
            self._connections.waits(self)

    def _take_body(self, body: RequestBody, data: bytes) -> bytes:
        """Passes on a part of the body. Returns the bytes after the body."""
        assert self._exchange is not None
        try:
            piece, rest = body.take(data)
        except RequestError as error:
            self._refuse(error)
            return b""
        self._exchange.add_body(piece, body.is_complete)
        if body.is_complete:
            self._body = None
            if self._exchange.is_complete:  # the answer was sent before the body was complete
                self._await_request()
            else:
                self._connections.has_request(self)
        return rest

    def _end_exchange(self) -> None:
        """Closes the connection, or begins to read the next request."""
        if self._exchange is None or not self._exchange.keeps_alive:
            self._close()
        elif self._body is None:
            self._await_request()
        else:
            self._body.answered_at = self._loop.time()
            self._transport.resume_reading()

    def _await_request(self) -> None:
        self._head = self._exchange = None
        self._request = {}
        self._deadline = self._loop.time() + self._limits.idle_seconds
        self._connections.waits(self)
        self._take_ahead()

    def _close(self) -> None:
        is_reading = self._body is not None or self._head_reader.has_begun
        self._transport.close(more_input=is_reading or self._is_refused or self._upgrade is not None)

    def _refuse(self, error: RequestError) -> None:
        """Sends the refusal, unless the request has an answer already, and closes the connection."""
        self._is_refused = True
        if self._exchange is None or not self._exchange.is_started:
            self._settings.on_refused(error.status)
            self._request[REFUSAL] = error
            self._transport.write(self._refusal(error))
        self._close()
        if self._exchange is not None:
            self._exchange.disconnect()

    def _refusal(self, error: RequestError) -> bytes:
        if self._head is not None:
            method, path, headers = self._head.method, self._head.served_path, self._head.headers
        else:
            method, path, headers = read_part(self._head_reader.text)
        status, sent, body = self._settings.render_error(path, headers, error)
        if self._exchange is None:
            self._settings.log_refusal(method, path, status, sent, error)
        return render_head(status, [*sent, (b"connection", b"close")]) + (b"" if method == "HEAD" else body)


def _timeout(part: str, seconds: float) -> RequestError:
    return RequestError(
        f"The request's {part} did not arrive in time: the server waited for {seconds:g} seconds.",
        status=408,
        code="request_timeout",
    )
