"""Connects httptools' parser and uvicorn's protocol: one message at a time, no trailers among the headers."""

from __future__ import annotations

from collections.abc import Callable

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Bytes of chunk extensions or trailers, without those that arrive in one read with a part of the body.
MOST_FRAMING = 16 * 1024


class MessageParser:
    """Replaces the parser of uvicorn's protocol and calls the protocol's methods.

    `error` is the error that ended the parsing. `is_complete`: the end of the message was found. `has_next`:
    another message begins after it in the same bytes; the protocol sees nothing of that one.
    """

    def __init__(self, protocol: HttpToolsProtocol, on_response: Callable[[], None]) -> None:
        self._protocol = protocol
        self._on_response = on_response
        self._parser = httptools.HttpRequestParser(self)
        self._has_headers = False
        self._framing = 0  # bytes of the message since its headers or the last part of its body
        self.error: Exception | None = None
        self.is_complete = False
        self.has_next = False

    def begin(self) -> None:
        """The next bytes begin a new message."""
        self.is_complete = False
        self._has_headers = False
        self._framing = 0

    def release(self) -> None:
        """Deletes the references that form cycles with this object. `feed_data` must not be called
        afterwards."""
        del self._parser, self._on_response

    # For uvicorn's protocol.

    def feed_data(self, data: bytes) -> None:
        if not data or self.error is not None:
            return
        if self._has_headers:
            self._framing += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as error:
            self.error = error
        except httptools.HttpParserError as error:
            self.error = None if self.has_next else error
        # httptools copies an incomplete trailer at each read, so the cost is the square of its length.
        if self._framing > MOST_FRAMING and not self.is_complete and self.error is None:
            self.error = ValueError("its trailers or chunk extensions are too long")

    def get_http_version(self) -> str:
        return self._parser.get_http_version()

    def get_method(self) -> bytes:
        return self._parser.get_method()

    def should_keep_alive(self) -> bool:
        return self._parser.should_keep_alive()

    def should_upgrade(self) -> bool:
        return False

    # Callbacks of httptools.

    def on_message_begin(self) -> None:
        self.has_next = self.is_complete
        if not self.has_next:
            self._protocol.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self.has_next:
            self._protocol.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A trailer, which follows the headers, must not be taken for one of them."""
        if not self.has_next and not self._has_headers:
            self._protocol.on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.has_next:
            return
        self._has_headers = True
        self._protocol.on_headers_complete()
        self._protocol.cycle.on_response = self._on_response

    def on_body(self, body: bytes) -> None:
        if not self.has_next:
            self._framing = 0
            self._protocol.on_body(body)

    def on_message_complete(self) -> None:
        if not self.has_next:
            self.is_complete = True
            self._protocol.on_message_complete()
