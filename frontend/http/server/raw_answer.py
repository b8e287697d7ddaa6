"""Sends an answer with the status 101, after which the connection speaks another protocol."""

from __future__ import annotations

import sys

from starlette.types import Message
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class RawAnswer:
    """Replaces the `send` of uvicorn's cycle. Other answers than 101 are sent as usual."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._send = cycle.send
        self._is_raw = False

    async def send(self, message: Message) -> None:
        cycle = self._cycle
        if message["type"] == "http.response.start" and message["status"] == 101:
            self._is_raw = True
            cycle.chunked_encoding = False
            cycle.expected_content_length = sys.maxsize
            cycle.keep_alive = True  # otherwise uvicorn adds the header `connection: close`
            await self._send(message)  # type: ignore[arg-type]
            cycle.keep_alive = False
            return
        if self._is_raw and not message.get("more_body", False):
            cycle.expected_content_length = len(message.get("body", b""))
        await self._send(message)  # type: ignore[arg-type]
