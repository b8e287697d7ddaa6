"""Writes chunks of an answer to its connection, without ASGI's `send`."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class ChunkWriter:
    """A `BodyWriter` (frontend/http/body_writer.py) beside the `send` of uvicorn's cycle."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._write = cycle.transport.write

    @property
    def is_ready(self) -> bool:
        return bool(self._cycle.chunked_encoding) and not self._flow.write_paused

    def write(self, part: bytes) -> None:
        """An empty part writes nothing: an empty chunk would end the body."""
        if part and not self._cycle.disconnected:
            self._write(b"%x\r\n%b\r\n" % (len(part), part))
