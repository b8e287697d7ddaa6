"""HTTP over plain sockets: cheap enough for thousands of streams, and able to read slowly."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

CONNECT_ATTEMPTS = 5


class Server(NamedTuple):
    host: str
    port: int
    api_key: str
    model: str = ""

    @classmethod
    def at(cls, url: str, api_key: str) -> Server:
        parts = urlsplit(url)
        return cls(parts.hostname or "127.0.0.1", parts.port or 80, api_key)

    def request(
        self, method: str, path: str, body: dict[str, Any] | None = None, keep: bool = False
    ) -> bytes:
        payload = b"" if body is None else json.dumps(body).encode()
        lines = [
            f"{method} {path} HTTP/1.1",
            f"Host: {self.host}:{self.port}",
            f"Authorization: Bearer {self.api_key}",
            f"Connection: {'keep-alive' if keep else 'close'}",
            *(["Content-Type: application/json", f"Content-Length: {len(payload)}"] if payload else []),
        ]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + payload


@dataclass
class Answer:
    """The answer. Times in seconds since the request was sent; `error` says why the answer is not
    whole."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    first_byte: float = 0.0
    seconds: float = 0.0
    error: str | None = None

    @property
    def retry_after(self) -> float:
        return float(self.headers.get("retry-after", "1"))

    def events(self) -> list[dict[str, Any]]:
        parts = self.body.split(b"\n\n")
        return [json.loads(part[6:]) for part in parts if part.startswith(b"data: {")]

    def text(self) -> str:
        return "".join(choice["text"] for event in self.events() for choice in event.get("choices", ()))

    def tokens(self) -> int:
        usages = [event["usage"]["completion_tokens"] for event in self.events() if event.get("usage")]
        return usages[-1] if usages else 0

    def fault(self) -> str | None:
        """Why a stream is not whole, or None."""
        if self.error is not None:
            return self.error
        if self.status != 200:
            return f"status {self.status}"
        reasons = [choice["finish_reason"] for event in self.events() for choice in event.get("choices", ())]
        if any(event.get("error") for event in self.events()):
            return "an error event"
        if not any(reasons):
            return "no finish reason"
        return None if self.body.rstrip().endswith(b"data: [DONE]") else "no [DONE]"


async def connect(server: Server, receive_buffer: int | None = None) -> socket.socket:
    """A connected socket; tried again while the server's backlog is full."""
    loop = asyncio.get_running_loop()
    for attempt in range(1, CONNECT_ATTEMPTS + 1):
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        connection.setblocking(False)
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            await loop.sock_connect(connection, (server.host, server.port))
            return connection
        except OSError:
            connection.close()
            if attempt == CONNECT_ATTEMPTS:
                raise
            await asyncio.sleep(0.2 * attempt)
    raise AssertionError("unreachable")


async def ask(server: Server, method: str, path: str, body: dict[str, Any] | None = None) -> Answer:
    """Sends one request on a new connection and reads it to its end; errors are stored in the answer."""
    loop = asyncio.get_running_loop()
    answer, parts, started = Answer(), list[bytes](), time.perf_counter()
    connection = None
    try:
        connection = await connect(server)
        await loop.sock_sendall(connection, server.request(method, path, body))
        while part := await loop.sock_recv(connection, 1 << 16):
            answer.first_byte = answer.first_byte or time.perf_counter() - started
            parts.append(part)
    except OSError as error:
        answer.error = repr(error)
    finally:
        if connection is not None:
            connection.close()
    answer.seconds = time.perf_counter() - started
    parse(b"".join(parts), answer)
    return answer


def parse(data: bytes, answer: Answer) -> None:
    """Fills status, headers and body."""
    head, separator, body = data.partition(b"\r\n\r\n")
    if not separator:
        answer.error = answer.error or f"the connection closed after {len(data)} bytes"
        return
    status, *lines = head.decode().split("\r\n")
    answer.status = int(status.split()[1])
    pairs = (line.partition(":") for line in lines)
    answer.headers = {name.lower(): value.strip() for name, _, value in pairs}
    if answer.headers.get("transfer-encoding") != "chunked":
        answer.body = body
        return
    answer.body, ended = _unchunked(body)
    if not ended:
        answer.error = answer.error or "the connection closed inside the body"


def _unchunked(data: bytes) -> tuple[bytes, bool]:
    """The body, and whether its end came."""
    parts: list[bytes] = []
    at = 0
    while (line_end := data.find(b"\r\n", at)) >= 0:
        size = int(data[at:line_end], 16)
        if not size:
            return b"".join(parts), True
        parts.append(data[line_end + 2 : line_end + 2 + size])
        at = line_end + 2 + size + 2
    return b"".join(parts), False
