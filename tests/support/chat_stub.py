"""A server of prepared replies in OpenAI's streaming format, on a thread."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Piece = str | dict[str, Any]
Reply = Sequence[Piece] | str | dict[str, str]


class ChatStub:
    """The server's requests. A reply is a list of pieces, each a text or a choice with its `delta`;
    or the text of an error event; or the error of an answer with status 400. With `is_guarded` every
    request is refused with 401. `sent` counts the events of all replies. A token is a word."""

    def __init__(self, url: str, replies: tuple[Reply, ...]) -> None:
        self.url = url
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.replies = list(replies)
        self.is_guarded = False
        self.sent = 0


@contextmanager
def chat_server(
    *replies: Reply, delay_s: float = 0.0, owner: str = "stub", has_template: bool = True
) -> Iterator[ChatStub]:
    """delay_s: before each event; owner: of the model, `arbora` for one that Arbora serves"""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            stub.keys.append(self.headers["Authorization"])
            if stub.is_guarded:
                self._start("application/json", 401)
                self.wfile.write(json.dumps({"error": {"message": "A key is needed."}}).encode())
                return
            self._start("application/json")
            self.wfile.write(json.dumps({"data": [{"id": "stub", "owned_by": owner}]}).encode())

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/tokenize" and not has_template:
                self._start("application/json", 400)
                self.wfile.write(b'{"error": {"message": "none", "code": "no_chat_template"}}')
                return
            if self.path == "/tokenize":
                self._start("application/json")
                text = body.get("prompt") or body["messages"][0]["content"]
                self.wfile.write(json.dumps({"count": len(text.split())}).encode())
                return
            stub.requests.append(body)
            reply = stub.replies.pop(0)
            if isinstance(reply, dict):
                self._start("application/json", 400)
                self.wfile.write(json.dumps({"error": reply}).encode())
                return
            self._start("text/event-stream")
            for event in _events(reply):
                time.sleep(delay_s)
                try:
                    self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
                    stub.sent += 1
                except ConnectionError:  # the client has ended the reply
                    return

        def _start(self, kind: str, status: int = 200) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        stub = ChatStub(f"http://127.0.0.1:{server.server_port}", replies)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield stub
        finally:
            server.shutdown()
            thread.join()


def _events(reply: Sequence[Piece] | str) -> Iterator[dict[str, Any]]:
    if isinstance(reply, str):
        yield {"error": {"message": reply}}
        return
    for piece in reply:
        choice = {"delta": {"content": piece}} if isinstance(piece, str) else piece
        yield {"choices": [{"index": 0, **choice}]}
