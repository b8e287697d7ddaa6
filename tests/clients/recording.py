"""A proxy between the clients and the server, which records what the clients send."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}


class Recorded:
    """`url` is the proxy's address; `bodies` are those of the requests, in order."""

    def __init__(self, server: str) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.server = server
        self.url = ""

    @property
    def v1(self) -> str:
        """The base URL of OpenAI's API."""
        return f"{self.url}/v1"

    @property
    def tool_results(self) -> list[str]:
        """The results of tools that the last request brings to the model."""
        body = self.bodies[-1]
        messages = body.get("messages") or body["input"]
        return [text for message in messages for text in _results(message)]


def _results(message: dict[str, Any]) -> Iterator[str]:
    """Those of a message of chat completions, an item of Responses, or a message of Anthropic's API."""
    if message.get("role") == "tool":
        yield _text(message["content"])
    elif message.get("type") == "function_call_output":
        yield _text(message["output"])
    elif isinstance(message.get("content"), list):
        for part in message["content"]:
            if part.get("type") == "tool_result":
                yield _text(part["content"])


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


@contextmanager
def recorded_requests(server: str) -> Iterator[Recorded]:
    recorded = Recorded(server)

    class Handler(_Handler):
        record = recorded

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    proxy.daemon_threads = True
    Thread(target=proxy.serve_forever, daemon=True).start()
    recorded.url = f"http://127.0.0.1:{proxy.server_port}"
    try:
        yield recorded
    finally:
        proxy.shutdown()
        proxy.server_close()


class _Handler(BaseHTTPRequestHandler):
    record: Recorded

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.record.bodies.append(json.loads(body))
        self._forward(body)

    def do_GET(self) -> None:
        self._forward(None)

    def _forward(self, body: bytes | None) -> None:
        where = urlsplit(self.record.server)
        connection = http.client.HTTPConnection(where.hostname or "", where.port)
        headers = {name: text for name, text in self.headers.items() if name.lower() not in HOP_BY_HOP}
        connection.request(self.command, self.path, body, headers)
        answer = connection.getresponse()
        self.send_response(answer.status)
        for name, text in answer.getheaders():
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, text)
        self.end_headers()  # the connection's end is the answer's
        while part := answer.read1(1 << 16):
            self.wfile.write(part)
            self.wfile.flush()
        connection.close()

    def log_message(self, *_: object) -> None:
        pass
