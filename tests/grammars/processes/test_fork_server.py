"""A fork server, run inside the test."""

from __future__ import annotations

import signal
import socket
import threading
import time
from typing import Any

import pytest
from arbora.grammars.processes import fork_server
from arbora.grammars.processes.messages import KILL


def test_memory_is_watched_while_messages_keep_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[float] = []
    monkeypatch.setattr(fork_server, "WATCH_MS", 100)
    monkeypatch.setattr(fork_server.ForkServer, "_watch_memory", lambda _: watched.append(time.monotonic()))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def keep_busy() -> None:
        with theirs:
            for _ in range(60):
                theirs.send(KILL + (1).to_bytes(8, "little"))
                time.sleep(0.01)

    before: Any = signal.getsignal(signal.SIGCHLD)
    sender = threading.Thread(target=keep_busy)
    serve: Any = None
    try:
        server = fork_server.ForkServer(ours, serve, max_growth=1)
        sender.start()
        server.run()
    finally:
        signal.signal(signal.SIGCHLD, before)
        sender.join()
        ours.close()
    assert 3 <= len(watched) <= 20


def test_a_server_without_a_scheduler_compiles_no_more() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        fork_server.report_compiling(theirs)
        ours.close()
        with pytest.raises(SystemExit, match="the scheduler has ended"):
            fork_server.report_compiling(theirs)
