"""WebSockets with hostile frames: each is refused with the right close code, and costs others nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import struct
import sys
from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from arbora.frontend.http import websocket
from arbora.frontend.http.body import MAX_BODY_BYTES, BodyMemory
from arbora.frontend.http.server.limits import Limits
from arbora.runtime.errors import RequestError
from http_world import HttpWorld, http_world
from raw_http import Answer, RawConnection, connection, request
from wsproto.events import Event, Ping

pytestmark = pytest.mark.asyncio(loop_scope="module")
PATH = "/generate/socket"
HANDSHAKE = (
    "Connection: keep-alive, Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    f"Sec-WebSocket-Key: {b64encode(bytes(16)).decode()}",
)
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
FINAL = 0x80


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[HttpWorld]:
    async with http_world(context_length=1024) as world:
        yield world


def frame(payload: bytes, opcode: int = TEXT, final: bool = True, declared: int | None = None) -> bytes:
    """A masked frame. It may declare another length than it has."""
    size = len(payload) if declared is None else declared
    first = opcode | (FINAL if final else 0)
    if size < 126:
        head = struct.pack("!BB", first, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", first, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", first, 0x80 | 127, size)
    mask = b"\x01\x02\x03\x04"
    masked = bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload)) if payload else b""
    return head + mask + masked


class RawSocket:
    def __init__(self, raw: RawConnection) -> None:
        self.raw = raw

    async def frame(self) -> tuple[int, bytes]:
        """The opcode and the payload of the next frame."""
        async with asyncio.timeout(30):
            first, size = await self.raw.reader.readexactly(2)
            if size == 126:
                (size,) = struct.unpack("!H", await self.raw.reader.readexactly(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", await self.raw.reader.readexactly(8))
            return first & 15, await self.raw.reader.readexactly(size)

    async def message(self) -> Any:
        opcode, payload = await self.frame()
        assert opcode == TEXT
        return json.loads(payload)

    async def closed(self) -> tuple[int, str]:
        """The code and the text of the close frame, after which the connection ends without a reset."""
        opcode, payload = await self.frame()
        while opcode != CLOSE:
            opcode, payload = await self.frame()
        assert await self.raw.ends()
        return int.from_bytes(payload[:2], "big"), payload[2:].decode()


@contextlib.asynccontextmanager
async def opened(world: HttpWorld, limit: int = 2**20) -> AsyncIterator[RawSocket]:
    async with connection(world.url, limit) as raw:
        await raw.send(request("GET", PATH, *HANDSHAKE))
        head = (await raw.reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
        assert head[0] == "http/1.1 101 switching protocols"
        assert "connection: upgrade" in head and "upgrade: websocket" in head
        assert "sec-websocket-accept: icx+yqv66kxgm0fcwalwlflwtai=" in head
        assert not [line for line in head if line.startswith(("transfer-encoding", "content-length"))]
        yield RawSocket(raw)


async def asked(world: HttpWorld, *headers: str, method: str = "GET", path: str = PATH) -> Answer:
    async with connection(world.url) as raw:
        await raw.send(request(method, path, *headers))
        return await raw.answer()


GENERATE = json.dumps({"type": "generate", "id": "a", "request": {"prompt": "Hello"}}).encode()


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ((), 426, "websocket_expected"),
        (("Upgrade: websocket",), 426, "websocket_expected"),
        (("Connection: Upgrade", "Upgrade: h2c"), 426, "websocket_expected"),
        ((*HANDSHAKE[:2], "Sec-WebSocket-Version: 8", HANDSHAKE[3]), 426, "websocket_version"),
        (HANDSHAKE[:3], 400, "invalid_handshake"),
        ((*HANDSHAKE[:3], "Sec-WebSocket-Key: short"), 400, "invalid_handshake"),
        ((*HANDSHAKE[:3], "Sec-WebSocket-Key: ÄÄÄÄ"), 400, "invalid_handshake"),
    ],
    ids=range(7),
)
async def test_a_wrong_handshake_is_refused(
    world: HttpWorld, headers: tuple[str, ...], status: int, code: str
) -> None:
    answer = await asked(world, *headers)
    assert answer.status == status
    assert json.loads(answer.body)["error"]["code"] == code
    if status == 426:
        assert answer.headers["upgrade"] == "websocket"


async def test_other_paths_ignore_the_offer(world: HttpWorld) -> None:
    answer = await asked(world, *HANDSHAKE, path="/version")
    assert (answer.status, answer.keeps_alive) == (200, True)


async def test_frames_right_behind_the_handshake_are_read(world: HttpWorld) -> None:
    async with connection(world.url) as raw:
        await raw.send(request("GET", PATH, *HANDSHAKE) + frame(GENERATE))
        await raw.reader.readuntil(b"\r\n\r\n")
        assert (await RawSocket(raw).message())["type"] == "reply"


async def test_a_message_in_fragments_of_single_bytes_is_read_with_a_ping_between(world: HttpWorld) -> None:
    async with opened(world) as socket:
        for place in range(len(GENERATE)):
            last = place == len(GENERATE) - 1
            await socket.raw.send(frame(GENERATE[place : place + 1], TEXT if place == 0 else 0, final=last))
            if place == 5:
                await socket.raw.send(frame(b"are you there?", PING))
                assert await socket.frame() == (PONG, b"are you there?")
        assert (await socket.message())["type"] == "reply"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x81\x05Hello", 1002),  # not masked
        (frame(b"a", opcode=3), 1002),
        (b"\xf1\x81\x00\x00\x00\x00a", 1002),  # reserved bits, as of compressed messages
        (frame(b"a" * 126, PING), 1002),
        (frame(b"a", PING, final=False), 1002),
        (frame(b"a", 0), 1002),  # continues nothing
        (frame(b"a", final=False) + frame(b"b"), 1002),  # a message inside a message
        (frame(b"\x03\xe8\xff", CLOSE), 1007),
        (frame(b"\xff\xff"), 1007),
        (frame("Ä".encode()[:1]), 1007),
        (frame(b"{}", BINARY), 1003),
        (frame(b"{", declared=1 << 63), 1002),
        (frame(b"\x03\xe8bye", CLOSE), 1000),
    ],
    ids=range(13),
)
async def test_an_invalid_frame_closes_the_connection_with_its_code(
    world: HttpWorld, data: bytes, code: int
) -> None:
    async with opened(world) as socket:
        await socket.raw.send(data)
        assert (await socket.closed())[0] == code


async def test_a_huge_message_is_refused_before_it_is_in_memory(
    world: HttpWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "MAX_BODY_BYTES", 200_000)
    async with opened(world) as socket:
        await socket.raw.send(frame(b"a" * 150_000, declared=1 << 40))
        with contextlib.suppress(ConnectionError):
            await socket.raw.send(b"a" * 150_000)
        assert await socket.closed() == (1009, "A message may have at most 200000 bytes.")


@pytest.mark.parametrize("size", [MAX_BODY_BYTES + 1, 1 << 62, (1 << 63) - 1])
async def test_a_frame_that_announces_too_much_is_refused_at_its_header(world: HttpWorld, size: int) -> None:
    async with opened(world) as socket:
        await socket.raw.send(frame(b"", declared=size))
        assert await socket.closed() == (1009, f"A message may have at most {MAX_BODY_BYTES} bytes.")


async def test_endless_fragments_are_refused_at_the_same_limit(
    world: HttpWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "MAX_BODY_BYTES", 20_000)
    async with opened(world) as socket:
        await socket.raw.send(frame(b"a", final=False))
        with contextlib.suppress(ConnectionError):
            for _ in range(30):
                await socket.raw.send(frame(b"a" * 1000, 0, final=False))
        assert (await socket.closed())[0] == 1009


async def test_messages_count_as_bodies_in_memory(world: HttpWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.http_service.bodies, "memory", BodyMemory(max_bytes=200_000))
    async with opened(world) as socket:
        await socket.raw.send(frame(b"a" * 190_000, final=False))
        code, reason = await socket.closed()
        assert code == 1013 and "too many large requests" in reason


async def test_a_message_counts_while_it_is_used_and_is_not_held_longer() -> None:
    received: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def send(_: object) -> None:
        raise AssertionError("nothing is sent")

    memory = BodyMemory(max_bytes=400_000)  # of which one client may have half
    messages = websocket.WebSocket(received.get, send, memory, "client").messages()
    received.put_nowait({"type": "http.request", "body": frame(b"a" * 200_000)})
    text = await anext(messages)
    with pytest.raises(RequestError):
        memory.take(100_000, "client")

    async def following() -> None:
        async for _ in messages:
            raise AssertionError("there is no other message")

    waiting = asyncio.create_task(following())
    await asyncio.sleep(0)
    memory.take(100_000, "client")
    assert len(text) == 200_000
    references = sys.getrefcount(text)
    assert references == 2  # of this function and of `getrefcount`
    received.put_nowait({"type": "http.disconnect"})
    await waiting


async def test_a_message_that_comes_too_slowly_is_refused(
    world: HttpWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "MESSAGE_SECONDS", 0.3)
    async with opened(world) as socket:
        await socket.raw.send(frame(b"a", final=False))
        ending = asyncio.create_task(socket.closed())
        while not ending.done():
            await socket.raw.send(frame(b"a", 0, final=False))
            await asyncio.sleep(0.05)
        assert await ending == (1008, "A message must arrive within 0.3 seconds.")


async def test_a_silent_client_gets_a_ping_and_is_then_disconnected(
    world: HttpWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = iter((600.0, 0.1))  # after each ping: the first one's answer may take long on a busy machine
    write = websocket.WebSocket._write

    async def write_and_wait(self: websocket.WebSocket, event: Event) -> None:
        await write(self, event)
        if isinstance(event, Ping):
            monkeypatch.setattr(websocket, "PING_SECONDS", next(waits))

    monkeypatch.setattr(websocket.WebSocket, "_write", write_and_wait)
    monkeypatch.setattr(websocket, "PING_SECONDS", 0.1)
    async with opened(world) as socket:
        assert await socket.frame() == (PING, b"")
        monkeypatch.setattr(websocket, "PING_SECONDS", 0.1)
        await socket.raw.send(frame(b"", PONG))
        assert await socket.frame() == (PING, b"")
        assert (await socket.closed())[0] == 1008


async def test_a_flood_of_pings_leaves_the_server_responsive(world: HttpWorld) -> None:
    async with opened(world) as socket:
        await socket.raw.send(frame(b"", PING) * 20_000)
        answered = asyncio.create_task(world.http.get("/version"))
        pongs = 0
        while not answered.done():
            assert await socket.frame() == (PONG, b"")
            pongs += 1
        assert (await answered).status_code == 200
        assert pongs < 10_000


async def test_a_client_that_does_not_read_is_disconnected() -> None:
    limits = Limits(write_seconds=1.0)
    async with http_world(limits=limits, context_length=1 << 15, send_buffer=4096) as world:
        world.script = lambda _: [65] * 30_000
        world.running.tokens_per_step = 20
        async with opened(world, limit=1024) as socket:
            body = {"prompt": "Hello", "stream": True, "logprobs": 5}
            message = {"type": "generate", "id": "a", "request": body}
            await socket.raw.send(frame(json.dumps(message).encode()))
            await world.until(lambda: world.engine.open_requests == 1)
            await world.until(lambda: world.engine.open_requests == 0)
            rest = bytearray()
            with contextlib.suppress(ConnectionError):
                while piece := await socket.raw.reader.read(1 << 16):
                    rest += piece
            assert b'"type":"event"' in rest and b'"type":"end"' not in rest


async def test_a_reset_connection_leaves_nothing_behind(world: HttpWorld) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        async with opened(world) as socket:
            await socket.raw.send(frame(GENERATE[:10], final=False))
            socket.raw.writer.transport.abort()
    await world.until(lambda: len(os.listdir("/proc/self/fd")) <= before)
