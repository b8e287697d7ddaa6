"""A WebSocket (RFC 6455) over an upgraded connection: its handshake, messages of text, pings and its end."""

from __future__ import annotations

import asyncio
import binascii
from base64 import b64decode
from collections.abc import AsyncGenerator, Mapping

from starlette.types import Receive, Scope, Send
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage
from wsproto.extensions import Extension
from wsproto.frame_protocol import CloseReason, FrameDecoder, FrameProtocol, Opcode, RsvBits
from wsproto.utilities import generate_accept_token

from ...runtime.errors import RequestError
from .body import MAX_BODY_BYTES, BodyMemory, Share
from .server.exchange import UPGRADE

PING_SECONDS = 30.0
"""Seconds of silence after which a client gets a ping. After twice this time it is disconnected."""
MESSAGE_SECONDS = 60.0
"""Maximum seconds from the first byte of a message to its last."""
FRAMES_PER_TURN = 32
"""Maximum frames read in one turn of the event loop. A frame may be only six bytes long."""
NONCE_BYTES = 16


class SocketError(Exception):
    """The reason to close the connection. `code` is the status of its close frame."""

    def __init__(self, code: CloseReason, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


async def accept(scope: Scope, send: Send) -> None:
    """Answers the handshake. Raises `RequestError` if the request can't open a WebSocket."""
    headers = dict(scope["headers"])
    if UPGRADE not in scope:
        raise RequestError(
            "This path is for WebSockets: send a GET request of HTTP/1.1 with the headers "
            "'Connection: Upgrade' and 'Upgrade: websocket'.",
            status=426,
            code="websocket_expected",
        )
    version = headers.get(b"sec-websocket-version", b"")
    if version != b"13":
        shown = version.decode("latin-1")[:20]
        raise RequestError(
            f"The header sec-websocket-version is {shown!r}: this server has version 13.",
            status=426,
            code="websocket_version",
        )
    answer = [
        (b"upgrade", b"websocket"),
        (b"connection", b"Upgrade"),
        (b"sec-websocket-accept", generate_accept_token(_read_nonce(headers))),
    ]
    await send({"type": "http.response.start", "status": 101, "headers": answer})


def _read_nonce(headers: Mapping[bytes, bytes]) -> bytes:
    nonce = headers.get(b"sec-websocket-key", b"").strip()
    try:
        if len(b64decode(nonce, validate=True)) == NONCE_BYTES:
            return nonce
    except binascii.Error:
        pass
    raise RequestError(
        f"The header sec-websocket-key must be {NONCE_BYTES} random bytes in base64.",
        code="invalid_handshake",
    )


class WebSocket:
    """The messages of an accepted WebSocket. A message's bytes count in `memory`, in the client's name.

    One frame is sent at a time: a client that does not read stops every sender, and then the reading.
    """

    def __init__(self, receive: Receive, send: Send, memory: BodyMemory, client: str) -> None:
        self._receive = receive
        self._send = send
        self._memory = memory
        self._client = client
        self._protocol = Connection(ConnectionType.SERVER, [_FrameLimit()])
        self._sending = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._frames = 0
        self._awaits_pong = False

    async def messages(self) -> AsyncGenerator[bytes, None]:
        """The client's messages, as UTF-8, until it closes or leaves. Raises `SocketError`.

        A message counts in the memory until the next one is asked for.
        """
        while True:
            with self._memory.share(self._client) as share:
                message = await self._next(share)
                if message is None:
                    return
                yield message
                del message  # frees it before the next message is read

    async def send(self, text: str) -> None:
        """Sends a message, unless the connection is closing."""
        await self._write(TextMessage(text))

    async def close(self, code: CloseReason, reason: str) -> None:
        """Sends a close frame, unless one has been sent."""
        await self._write(CloseConnection(code, reason))

    async def end(self) -> None:
        """Ends the connection. Nothing can be sent after it."""
        await self._send({"type": "http.response.body", "body": b""})

    async def _next(self, share: Share) -> bytes | None:
        """The next message; None if the client has sent its last one."""
        message = bytearray()
        begun_at: float | None = None
        while True:
            for event in self._protocol.events():
                await self._let_others_run()
                if isinstance(event, TextMessage):
                    begun_at = begun_at or self._loop.time()
                    self._add(message, event.data.encode(), share)
                    if event.message_finished:
                        return bytes(message)
                elif isinstance(event, BytesMessage):
                    raise SocketError(CloseReason.UNSUPPORTED_DATA, "Messages must be JSON in text frames.")
                elif isinstance(event, Ping):
                    await self._write(event.response())
                elif isinstance(event, CloseConnection):  # from the client, or wsproto's for an invalid frame
                    await self._write(event.response())
                    return None
            data = await self._receive_bytes(begun_at)
            if data is None:
                return None
            self._protocol.receive_data(data)

    def _add(self, message: bytearray, piece: bytes, share: Share) -> None:
        if len(message) + len(piece) > MAX_BODY_BYTES:
            raise _too_big()
        try:
            share.add(len(piece))
        except RequestError as error:
            raise SocketError(CloseReason.TRY_AGAIN_LATER, error.message) from None
        message += piece

    async def _receive_bytes(self, begun_at: float | None) -> bytes | None:
        """The client's next bytes; None if it has left. `begun_at`: when the message being read began."""
        while True:
            left = PING_SECONDS if begun_at is None else begun_at + MESSAGE_SECONDS - self._loop.time()
            if left <= 0:
                raise _too_slow()
            try:
                async with asyncio.timeout(left):
                    received = await self._receive()
            except TimeoutError:
                if begun_at is not None:
                    raise _too_slow() from None
                if self._awaits_pong:
                    raise SocketError(CloseReason.POLICY_VIOLATION, "No answer to a ping.") from None
                self._awaits_pong = True
                await self._write(Ping())
                continue
            self._awaits_pong = False
            return None if received["type"] == "http.disconnect" else received.get("body", b"")

    async def _write(self, event: Event) -> None:
        async with self._sending:
            is_end = isinstance(event, CloseConnection)
            if self._protocol.state is not ConnectionState.OPEN and not (
                is_end and self._protocol.state is ConnectionState.REMOTE_CLOSING
            ):
                return
            frame = bytes(self._protocol.send(event))
            await self._send({"type": "http.response.body", "body": frame, "more_body": True})

    async def _let_others_run(self) -> None:
        self._frames += 1
        if self._frames % FRAMES_PER_TURN == 0:
            await asyncio.sleep(0)


class _FrameLimit(Extension):
    """Refuses a frame that is longer than a message may be once its header has come. No client knows of this
    extension: it only sees the headers."""

    def enabled(self) -> bool:
        return True

    def offer(self) -> bool:
        return False

    def frame_inbound_header(
        self, proto: FrameDecoder | FrameProtocol, opcode: Opcode, rsv: RsvBits, payload_length: int
    ) -> RsvBits:
        if payload_length > MAX_BODY_BYTES:
            raise _too_big()
        return RsvBits(False, False, False)


def _too_big() -> SocketError:
    return SocketError(CloseReason.MESSAGE_TOO_BIG, f"A message may have at most {MAX_BODY_BYTES} bytes.")


def _too_slow() -> SocketError:
    return SocketError(
        CloseReason.POLICY_VIOLATION, f"A message must arrive within {MESSAGE_SECONDS:g} seconds."
    )
