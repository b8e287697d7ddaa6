"""`arbora ps`: the servers that run, and their states."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from arbora.frontend.cli import ps
from arbora.frontend.cli.main import main
from arbora.frontend.cli.server_option import no_answer
from arbora.frontend.launch.directory import PREFIX, PrivateDirectory, RunningServer

FAKE_SERVER = Path(__file__).parents[2] / "support" / "fake_server.py"


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory for temporary files, whose path must be short."""
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        monkeypatch.setattr(tempfile, "tempdir", directory)
        monkeypatch.setattr(ps, "PATIENCE_S", 0.3)
        yield Path(directory)


def listed(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert main(["ps", "--json"]) == 0
    servers: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["servers"]
    return servers


@contextmanager
def server_with_health(status: int) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health" else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_without_a_server_the_list_is_empty(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert listed(capsys) == []
    assert main(["ps"]) == 0
    assert "no server of this user runs; start one with" in capsys.readouterr().out


def test_a_running_server_is_listed_with_its_address_and_process(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running = subprocess.Popen(
        [sys.executable, str(FAKE_SERVER), "0"],
        env={**os.environ, "TMPDIR": str(directory), "PYTHONSAFEPATH": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert running.stdout is not None
    first_line = running.stdout.readline()
    (found,) = listed(capsys)
    assert (found["model"], found["pid"]) == ("fake", running.pid)
    assert f" at {found['url']} on " in first_line and found["uptime_s"] >= 0
    assert found["state"] == "no answer"  # the fake tokenizer process accepts no connections
    running.kill()
    running.communicate()
    until_gone = time.monotonic() + 60
    while listed(capsys):  # its children hold the lock until they have ended
        assert time.monotonic() < until_gone
        time.sleep(0.05)
    assert [*directory.glob(PREFIX + "*")]  # the next server removes it, not this command


@pytest.mark.parametrize(
    ("status", "is_ready", "state"),
    [(200, True, "ready"), (503, True, "restarting"), (200, False, "starting")],
)
def test_the_state_is_that_of_the_server_s_health(
    directory: Path, capsys: pytest.CaptureFixture[str], status: int, is_ready: bool, state: str
) -> None:
    with server_with_health(status) as url, closing(PrivateDirectory.open(directory)) as private:
        private.describe(RunningServer("qwen3:0.6b", url, 17, time.time() - 3700, is_ready))
        assert [each["state"] for each in listed(capsys)] == [state]
        assert main(["ps"]) == 0
        said = capsys.readouterr().out
    assert all(word in said for word in ("qwen3:0.6b", url, "17", "1h 1min", state))


def test_a_server_that_takes_no_connections_is_stopping(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(PrivateDirectory.open(directory)) as private:
        private.describe(RunningServer("m", "http://127.0.0.1:1", 17, time.time(), is_ready=True))
        private.describe(RunningServer("m", f"unix:{directory}/no.sock", 17, time.time(), is_ready=True))
        assert [each["state"] for each in listed(capsys)] == ["stopping"]
        assert "run:" not in str(no_answer("http://127.0.0.1:2", ConnectionRefusedError()))


def test_a_command_that_finds_no_server_names_those_that_run(directory: Path) -> None:
    with closing(PrivateDirectory.open(directory)) as private:
        private.describe(RunningServer("m", "http://127.0.0.1:1", 17, time.time(), is_ready=True))
        said = str(no_answer("http://127.0.0.1:2", ConnectionRefusedError()))
    assert said.endswith("These servers run: http://127.0.0.1:1 (m).")


def test_an_engine_is_no_server(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(PrivateDirectory.open(directory)):
        assert listed(capsys) == []


@pytest.mark.parametrize(
    ("seconds", "text"), [(5, "5s"), (65, "1min 5s"), (3700, "1h 1min"), (180_000, "2d 2h")]
)
def test_an_uptime_has_two_units(seconds: float, text: str) -> None:
    assert ps.in_words(seconds) == text
