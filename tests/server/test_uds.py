"""A real server that listens on a Unix socket."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

from generate_sockets import streams_a_reply
from served import HELLO, eventually, serve


def test_a_server_on_a_unix_socket_serves_after_its_http_process_was_replaced(served_model: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        path = Path(directory) / "arbora.sock"
        with serve(served_model, uds=path) as server:
            assert server.url == f"unix:{path}"
            for _ in range(2):
                reply = server.http.post("/v1/chat/completions", json={"messages": HELLO, "max_tokens": 4})
                assert reply.json()["usage"]["completion_tokens"] > 0
                assert streams_a_reply(server)
            foreign = server.http.get("/v1/models", headers={"Host": "evil.example"})
            assert foreign.json()["error"]["code"] == "host_not_allowed"

            first = server.children["tokenizer"]
            os.kill(first, signal.SIGKILL)
            eventually(lambda: server.children.get("tokenizer", first) != first)

            eventually(lambda: server.is_healthy)
            assert streams_a_reply(server)
            eventually(lambda: f"curl --unix-socket {path} http://localhost" in "".join(server.log))
        assert list(Path(directory).iterdir()) == []
