"""GET /generate/socket: several requests to /generate over one WebSocket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from wsproto.frame_protocol import CloseReason

from ....runtime.api_keys import ApiKey
from ....runtime.errors import RequestError
from ...core.work.caller import Caller, ClientGoneError
from ...http.endpoint import GenerationEndpoint, refusal_of
from ...http.http_service import HttpService
from ...http.outcome import ERROR, observe
from ...http.server.exchange import UPGRADE, Upgrade
from ...http.tenants import SENT_KEY, caller_of
from ...http.websocket import SocketError, WebSocket, accept
from .generate import prepare_generate
from .messages import Cancel, Start, cancelled_message, error_message, message_form, read_message

MAX_OPEN = 256
"""Maximum open requests of one connection."""


class SocketEndpoint:
    """The ASGI application for /generate/socket."""

    def __init__(self, http: HttpService) -> None:
        self._http = http

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await accept(scope, send)
        client = caller_of(Request(scope), self._http.service.config).name
        socket = WebSocket(receive, send, self._http.bodies.memory, client)
        await _Session(self._http, scope, socket, client).run()


class _Session:
    """The requests of one connection. `client` is the caller's name."""

    def __init__(self, http: HttpService, scope: Scope, socket: WebSocket, client: str) -> None:
        self._http = http
        self._scope = scope
        self._socket = socket
        self._client = client
        self._upgrade: Upgrade = scope[UPGRADE]
        self._open: dict[str, _Exchange] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serves the connection to its end."""
        self._upgrade.set_busy(False)
        reading = asyncio.create_task(self._read())
        ending = asyncio.create_task(self._upgrade.ending.wait())
        try:
            await asyncio.wait((reading, ending), return_when=asyncio.FIRST_COMPLETED)
            code, reason = CloseReason.GOING_AWAY, "The server closes this connection."
            if reading.done():
                code, reason = _end_of(reading)
            await self._socket.close(code, reason)
        finally:
            reading.cancel()
            ending.cancel()
            for exchange in self._open.values():
                exchange.gone.set()
            await asyncio.gather(reading, ending, *self._tasks, return_exceptions=True)
        await self._socket.end()

    async def _read(self) -> None:
        async with contextlib.aclosing(self._socket.messages()) as messages:
            async for text in messages:
                await self._follow(text)
                del text  # frees it before the next message is read

    async def _follow(self, text: bytes) -> None:
        """Starts or cancels a request, as the message asks."""
        try:
            message = await self._decoded(text)
        except RequestError as error:
            await self._refuse(None, error)
            return
        if isinstance(message, Start):
            await self._start(message)
        elif message.id in self._open:
            self._open[message.id].gone.set()

    async def _decoded(self, text: bytes) -> Start | Cancel:
        caller = Caller(self._client, body_bytes=lambda: len(text))
        return await self._http.service.work.call(caller, read_message, text)

    async def _start(self, start: Start) -> None:
        try:
            self._check(start)
        except RequestError as error:
            await self._refuse(None if start.id in self._open else start.id, error)
            return
        exchange = _Exchange(bytes(start.request), self._socket.send, partial(self._forget, start.id))
        self._open[start.id] = exchange
        self._upgrade.set_busy(True)
        task = asyncio.create_task(self._answer(start.id, exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _check(self, start: Start) -> None:
        """Raises `RequestError` if the request can't start now."""
        if start.id in self._open:
            raise RequestError(
                f"The id {start.id!r} is that of an open request: each needs its own.",
                param="id",
                code="id_in_use",
            )
        if len(self._open) >= MAX_OPEN:
            raise RequestError(
                f"{MAX_OPEN} requests of this connection have not ended: wait for one of them.",
                status=429,
                code="too_many_requests",
            )
        key: ApiKey | None = self._scope.get(SENT_KEY)
        if key is not None:
            self._scope[SENT_KEY] = self._http.keys.still_known(key)

    async def _refuse(self, id: str | None, error: RequestError) -> None:
        self._http.metrics.failed.labels(error.status).inc()
        await self._socket.send(error_message(id, error))

    async def _answer(self, id: str, exchange: _Exchange) -> None:
        scope = {**self._scope, "method": "POST", "headers": _headers(self._scope, exchange.size)}
        try:
            await _endpoint(self._http, id)(scope, exchange.receive, exchange.send)
        except ClientGoneError:
            pass
        finally:
            self._forget(id, exchange)
            key: ApiKey | None = scope.get(SENT_KEY)
            if key is not None and exchange.status:
                self._http.metrics.key_answers.labels(key.name, exchange.status).inc()
        if not exchange.is_complete:
            await self._socket.send(cancelled_message(id))

    def _forget(self, id: str, exchange: _Exchange) -> None:
        """Frees the id of an answered request, unless a new request has it already."""
        if self._open.get(id) is exchange:
            del self._open[id]
            self._upgrade.set_busy(bool(self._open))


def _endpoint(http: HttpService, id: str) -> ASGIApp:
    """The application for one request. The log and the traces have each request."""
    form = message_form(id)
    endpoint = GenerationEndpoint(http, partial(prepare_generate, form=form))

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await endpoint(scope, receive, send)
        except ClientGoneError:
            raise
        except Exception as error:
            refusal = refusal_of(error, "a request over a WebSocket failed")
            http.metrics.failed.labels(refusal.status).inc()
            scope[ERROR] = refusal
            await send({"type": "http.response.start", "status": refusal.status, "headers": []})
            await send({"type": "http.response.body", "body": form.error(refusal)})

    return observe(answer, http.listeners)


class _Exchange:
    """The ASGI channels of one request: its body of `size` bytes, and the lines of its answer.

    `gone` is set to cancel it. `on_complete` is called when the last line has been sent.
    """

    def __init__(
        self,
        body: bytes,
        send_text: Callable[[str], Awaitable[None]],
        on_complete: Callable[[_Exchange], None],
    ) -> None:
        self.size = len(body)
        self.gone = asyncio.Event()
        self.is_complete = False
        self.status = 0
        self._send_text = send_text
        self._on_complete = on_complete
        self._body: bytes | None = body

    async def receive(self) -> Message:
        body, self._body = self._body, None  # drops the reference, so that the reader can free it
        if body is None:
            await self.gone.wait()
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        for line in message.get("body", b"").splitlines():
            await self._send_text(line.decode())
        if not message.get("more_body", False):
            self.is_complete = True
            self._on_complete(self)


def _headers(scope: Scope, size: int) -> list[tuple[bytes, bytes]]:
    """The handshake's headers, with the type and length of a JSON body."""
    replaced = (b"content-type", b"content-length", b"content-encoding")
    kept = [(name, value) for name, value in scope["headers"] if name not in replaced]
    return [*kept, (b"content-type", b"application/json"), (b"content-length", b"%d" % size)]


def _end_of(reading: asyncio.Task[None]) -> tuple[CloseReason, str]:
    """The close frame's status and text once no more messages are read."""
    error = reading.exception()
    if error is None:
        return CloseReason.NORMAL_CLOSURE, ""
    if isinstance(error, SocketError):
        return error.code, error.reason
    raise error
