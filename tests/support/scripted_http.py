"""A server whose answers are given in advance, one for each request."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """`breaks`: the connection is closed behind the body, before all that its length promises."""

    body: str = ""
    status: int = 200
    retry_after: str | None = None
    breaks: bool = False


MODELS = Answer('{"data": [{"id": "m", "owned_by": "arbora"}]}')
REPLY = Answer('{"choices": [{"text": " yes", "finish_reason": "stop"}]}')


@contextlib.contextmanager
def scripted_http(*answers: Answer, bodies: list[Any] | None = None) -> Iterator[str]:
    """The server's URL. The last answer is given to all requests that follow. `bodies` gets the JSON of each
    request that has one."""
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            if body and bodies is not None:
                bodies.append(json.loads(body))
            answer = left.pop(0) if len(left) > 1 else left[0]
            content = answer.body.encode()
            self.send_response(answer.status)
            if answer.retry_after is not None:
                self.send_header("Retry-After", answer.retry_after)
            self.send_header("Content-Length", str(len(content) + answer.breaks))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET  # noqa: N815 (the name that http.server calls)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
