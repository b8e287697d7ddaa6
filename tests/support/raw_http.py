"""A small HTTP/1.1 client that sends any bytes, valid or not, and reads the answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from certificates import client_context


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        error = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return dict(error)

    @property
    def refusal(self) -> tuple[int, str]:
        """The status and the error's code."""
        return self.status, self.error["code"]

    @property
    def keeps_alive(self) -> bool:
        return self.headers.get("connection", "").lower() != "close"


class RawConnection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, seconds: float = 20.0) -> Answer:
        """The next answer on the connection, 100 Continue included."""
        async with asyncio.timeout(seconds):
            return await read_answer(self.reader)

    async def ends(self, seconds: float = 20.0) -> bool:
        """Whether the server closes the connection, without another byte and without a reset."""
        async with asyncio.timeout(seconds):
            return await self.reader.read(1) == b""


@contextlib.asynccontextmanager
async def connection(url: str, limit: int = 2**20) -> AsyncIterator[RawConnection]:
    where = urlsplit(url)
    tls = client_context() if where.scheme == "https" else None
    reader, writer = await asyncio.open_connection(where.hostname, where.port, limit=limit, ssl=tls)
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def asked(url: str, data: bytes) -> Answer:
    """The first answer to these bytes, on a connection of their own."""
    async with connection(url) as raw:
        await raw.send(data)
        return await raw.answer()


class KeptConnection:
    """A connection that is opened when it is needed, and kept between requests."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def exchange(self, request: bytes, *, has_body: bool = True) -> Answer:
        """Sends one request and reads its answer. `has_body` is False for the answer to a HEAD.

        Raises ConnectionError or asyncio.IncompleteReadError if the server ends the connection before that.
        """
        is_fresh = self._writer is None
        try:
            return await self._exchange(request, has_body)
        except (ConnectionError, asyncio.IncompleteReadError):
            await self.close()
            if is_fresh:
                raise
            return await self._exchange(request, has_body)  # the server may have ended an idle connection

    async def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
        self._reader = self._writer = None

    async def _exchange(self, request: bytes, has_body: bool) -> Answer:
        if self._reader is None or self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(*self._address)
        self._writer.write(request)
        with contextlib.suppress(ConnectionError):  # an answer may arrive before all is sent
            await self._writer.drain()
        answer = await read_answer(self._reader, has_body=has_body)
        while answer.status == 100:
            answer = await read_answer(self._reader, has_body=has_body)
        if not answer.keeps_alive:
            await self.close()
        return answer


async def read_answer(reader: asyncio.StreamReader, *, has_body: bool = True) -> Answer:
    """The next answer, 100 Continue included."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").strip().split("\r\n")
    status = int(first.split()[1])
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): content.strip() for name, _, content in pairs}
    body = b""
    if not has_body or status in (100, 204, 304):
        pass
    elif headers.get("transfer-encoding") == "chunked":
        body = await _read_chunks(reader)
    elif "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
    return Answer(status, headers, body)


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        parts.append((await reader.readexactly(size + 2))[:-2])
    await reader.readexactly(2)
    return b"".join(parts)


def request_bytes(
    method: str, path: str, headers: Iterable[tuple[str, str]], body: bytes | None, host: str = "127.0.0.1"
) -> bytes:
    lines = [f"{name}: {content}" for name, content in headers]
    return _message(method, path, [f"Host: {host}", *lines], body)


def request(method: str, path: str, *headers: str, body: bytes | None = None) -> bytes:
    """`headers` are whole lines. A body is sent as JSON."""
    kind = [] if body is None else ["Content-Type: application/json"]
    return _message(method, path, ["Host: localhost", *headers, *kind], body)


def _message(method: str, path: str, lines: list[str], body: bytes | None) -> bytes:
    length = [] if body is None else [f"Content-Length: {len(body)}"]
    return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, *length, "", ""]).encode() + (body or b"")


def in_chunks(body: bytes, size: int) -> bytes:
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
