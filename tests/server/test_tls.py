"""A real server that speaks HTTPS."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from certificates import write_certificate
from generate_sockets import streams_a_reply
from served import HELLO, PATIENCE, eventually, serve


def chat(url: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "arbora", "chat", "--url", url],
        input="hi\n/exit\n",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "PYTHONSAFEPATH": "1", **environment},
    )


def test_a_server_speaks_https_in_each_of_its_processes(served_model: Path, tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    with serve(served_model, "--ssl-certfile", f"{certificate},{key}") as server:
        assert server.url.startswith("https://127.0.0.1:")
        reply = server.client.chat.completions.create(model=server.model, messages=HELLO, max_tokens=4)
        assert reply.usage is not None and reply.usage.completion_tokens > 0
        assert streams_a_reply(server)

        trusting = chat(server.url, SSL_CERT_FILE=str(certificate))
        assert (trusting.returncode, trusting.stderr) == (0, "")
        untrusting = chat(server.url)
        assert untrusting.returncode == 2
        assert "is not trusted (self-signed certificate). Set SSL_CERT_FILE" in untrusting.stderr

        first = server.children["tokenizer"]
        os.kill(first, signal.SIGKILL)
        eventually(lambda: server.children.get("tokenizer", first) != first)

        eventually(lambda: server.is_healthy)
        assert streams_a_reply(server)
        assert "Traceback" not in "".join(server.log)
