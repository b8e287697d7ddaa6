"""A server that answers in llama.cpp's forms: python fake_llama_server.py --port PORT, other options ignored.

Each reply is as many words as `max_tokens`, and all but ten tokens of its prompt were cached.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

UNHEALTHY_ANSWERS = 2
health = iter([503] * UNHEALTHY_ANSWERS)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status = next(health, 200) if self.path == "/health" else 200
        self._answer(status, json.dumps({"data": [{"id": "fake"}]}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            self._answer(200, json.dumps({"tokens": body.get("content", "").split()}))
        else:
            self._answer(200, "".join(f"data: {event}\n\n" for event in events(body)))

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())


def events(body: dict[str, Any]) -> list[str]:
    prompt = sum(len(message["content"].split()) for message in body["messages"])
    usage = {"prompt_tokens": prompt, "completion_tokens": body["max_tokens"]}
    word = {"choices": [{"delta": {"content": "word "}, "finish_reason": None}]}
    end = {"choices": [{"delta": {}, "finish_reason": "length"}]}
    last = {"choices": [], "usage": usage, "timings": {"cache_n": max(0, prompt - 10)}}
    return [*([json.dumps(word)] * body["max_tokens"]), json.dumps(end), json.dumps(last), "[DONE]"]


if __name__ == "__main__":
    port = int(sys.argv[sys.argv.index("--port") + 1])
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
