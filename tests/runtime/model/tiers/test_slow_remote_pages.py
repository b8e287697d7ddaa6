"""A remote store whose answers arrive slowly is paused before they end."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from arbora.runtime.model.tiers import remote
from arbora.runtime.model.tiers.disk import StoredPage
from arbora.runtime.model.tiers.remote import RemoteStore
from served import eventually

KEY = bytes(16)


@contextlib.contextmanager
def dripping() -> Iterator[tuple[str, list[bool]]]:
    """A server that begins a long answer: its URL, and whether each connection was left before that ended."""
    left: list[bool] = []

    def drip(connection: socket.socket) -> None:
        with connection, contextlib.suppress(ConnectionError):
            connection.sendall(b"$1000000\r\n")
            for _ in range(500):
                time.sleep(0.01)
                connection.sendall(b"x")
            left.append(False)
            return
        left.append(True)

    def accept(server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=drip, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, args=(server,), daemon=True).start()
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0", left
        server.shutdown(socket.SHUT_RDWR)


def test_an_answer_that_arrives_slowly_hits_the_deadline(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(remote, "ANSWER_SECONDS", 0.3)
    with dripping() as (url, left):
        store = RemoteStore(url)
        assert not store.read("", {KEY: memoryview(bytearray(100))})
        assert store.count("", [KEY]) == 0
        store.write([StoredPage(KEY, "", memoryview(bytes(100)))])
        assert store.forget("", None) is None
        eventually(lambda: len(left) == 3)
    assert all(left)
    assert [record.message.split(" for ")[0] for record in caplog.records] == [
        "the remote cache is not read",
        "the remote cache takes no pages",
        "the remote cache is not read",
    ]
