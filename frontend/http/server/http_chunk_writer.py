"""Writes chunks of an answer to its connection, without ASGI's `send`."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class HttpChunkWriter:
    """The `BodyWriter` (frontend/http/body_writer.py) of the request that a connection answers."""

    def __init__(self, inner: HttpToolsProtocol) -> None:
        self._inner = inner

    @property
    def is_ready(self) -> bool:
        return not self._inner.flow.write_paused

    def write(self, part: bytes) -> None:
        if not self._inner.cycle.disconnected:
            self._inner.transport.write(b"%x\r\n%b\r\n" % (len(part), part))
