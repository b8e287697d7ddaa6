"""Any server as a child process, from its start until it answers on /health, and its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from compared_servers import ServerCommand

START_DEADLINE_S = 900
STOP_PATIENCE_S = 60


class StartedServer(NamedTuple):
    url: str
    pid: int
    ready_s: float
    """seconds from its start to its first healthy answer"""


@contextmanager
def started(server: ServerCommand, logs: Path) -> Iterator[StartedServer]:
    """The server in a process group of its own; its output is appended to a file in `logs`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = logs / f"{server.name.replace('/', '_').replace(' ', '_')}.log"
    begun = time.monotonic()
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*server.arguments, "--port", str(port)],
            env={**os.environ, **server.environment},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        _wait_until_healthy(f"http://127.0.0.1:{port}/health", process, server.name, log)
        yield StartedServer(f"http://127.0.0.1:{port}", process.pid, round(time.monotonic() - begun, 1))
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_PATIENCE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_until_healthy(url: str, process: subprocess.Popen[bytes], name: str, log: Path) -> None:
    deadline = time.monotonic() + START_DEADLINE_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit(f"{name} ended with {process.returncode} while it started; see {log}")
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.1)
    sys.exit(f"{name} was not ready within {START_DEADLINE_S} s; see {log}")
