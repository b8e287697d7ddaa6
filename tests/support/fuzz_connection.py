"""A small HTTP/1.1 client that sends what it is told to, right or wrong, and reads the answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import NamedTuple


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def keeps_alive(self) -> bool:
        return self.headers.get("connection", "").lower() != "close"


def request_bytes(
    method: str, path: str, headers: Iterable[tuple[str, str]], body: bytes | None, host: str = "127.0.0.1"
) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {content}" for name, content in headers]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + (body or b"")


class Connection:
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
        with contextlib.suppress(ConnectionError):  # an answer may come before all is sent
            await self._writer.drain()
        answer = await _read_answer(self._reader, has_body)
        if not answer.keeps_alive:
            await self.close()
        return answer


async def _read_answer(reader: asyncio.StreamReader, has_body: bool) -> Answer:
    status = 100
    while status == 100:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        status = int(first.split()[1])
    pairs = (line.partition(":") for line in lines if line)
    headers = {name.strip().lower(): content.strip() for name, _, content in pairs}
    if not has_body or status in (204, 304):
        return Answer(status, headers, b"")
    if headers.get("transfer-encoding") == "chunked":
        return Answer(status, headers, await _read_chunks(reader))
    if "content-length" in headers:
        return Answer(status, headers, await reader.readexactly(int(headers["content-length"])))
    return Answer(status, headers, await reader.read())


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readexactly(2)
    return b"".join(parts)
