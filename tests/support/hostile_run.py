"""The hostile corpus, sent to a server once: grammars, bodies, and how each was answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

from hostile_bodies import CHAT, HostileBody, hostile_bodies
from hostile_grammars import chat_body, hostile_grammars
from raw_http import Answer, KeptConnection, request_bytes

JSON = [("Content-Type", "application/json")]


class Answered(NamedTuple):
    """`answer` is None if none came within the time, or the connection ended before it."""

    name: str
    answer: Answer | None
    seconds: float


def corpus(share: float, depths: tuple[int, ...]) -> Iterator[tuple[str, HostileBody]]:
    """`share` is that of the bodies' full size, `depths` those of the grammars."""
    for name, hostile in hostile_grammars(depths):
        yield f"grammar: {name}", HostileBody(CHAT, chat_body(hostile))
    for name, body in hostile_bodies(share):
        yield f"body: {name}", body


async def send_corpus(
    url: str, cases: Iterable[tuple[str, HostileBody]], connections: int, within_s: float, key: str = "none"
) -> list[Answered]:
    found: list[Answered] = []
    remaining = iter(cases)
    headers = [*JSON, ("Authorization", f"Bearer {key}")]

    async def send() -> None:
        for name, (path, body) in remaining:
            found.append(await _answer(url, name, path, body, headers, within_s))

    await asyncio.gather(*(send() for _ in range(connections)))
    return found


async def _answer(
    url: str, name: str, path: str, body: bytes, headers: list[tuple[str, str]], within_s: float
) -> Answered:
    address = urlsplit(url)
    host, port = address.hostname or "127.0.0.1", address.port or 80
    connection = KeptConnection(host, port)
    started = time.monotonic()
    answer = None
    try:
        async with asyncio.timeout(within_s):
            answer = await connection.exchange(request_bytes("POST", path, headers, body, f"{host}:{port}"))
    except (OSError, asyncio.IncompleteReadError, TimeoutError):
        pass
    await connection.close()
    return Answered(name, answer, time.monotonic() - started)
