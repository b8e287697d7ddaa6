"""A server in the foreground: what it prints, how signals and failures end it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from arbora.frontend.launch.directory import PREFIX
from arbora.frontend.launch.serve import next_step, ready_line
from arbora.runtime.config import ServeConfig
from arbora.runtime.messages import CacheGroup, ModelReady, Pooling
from processes import is_alive

FAKE_SERVER = Path(__file__).parents[2] / "support" / "fake_server.py"
PATIENCE = 60.0
STARTING = "arbora: starting fake (/nowhere)"


class Process:
    """A server in the foreground, with fake children, until its first line."""

    def __init__(self, directory: Path, *behaviours: str, ignores_hangup: bool = False) -> None:
        on_hangup = signal.SIG_IGN if ignores_hangup else signal.SIG_DFL
        self.popen = subprocess.Popen(
            [sys.executable, str(FAKE_SERVER), "0", *behaviours],
            preexec_fn=lambda: signal.signal(signal.SIGHUP, on_hangup),  # the tests may run under nohup
            env={**os.environ, "TMPDIR": str(directory), "PYTHONSAFEPATH": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.popen.stdout is not None
        self.first_line = self.popen.stdout.readline()
        self.directory = directory

    @property
    def private(self) -> Path:
        return next(self.directory.glob(PREFIX + "*"))

    def children(self) -> list[int]:
        return [int(file.read_text()) for file in self.private.glob("*.pid")]

    def finish(self) -> tuple[int, str]:
        _, errors = self.popen.communicate(timeout=PATIENCE)
        return self.popen.returncode, errors


@pytest.fixture
def short_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        yield Path(directory)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_ready_server_prints_one_line_with_its_address(short_directory: Path) -> None:
    server = Process(short_directory)
    assert server.first_line.startswith("Arbora serves fake at http://127.0.0.1:")
    assert "KV cache 1,600 tokens" in server.first_line
    server.popen.terminate()
    server.finish()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_drains_the_server_which_says_so_and_leaves_no_process(
    short_directory: Path, number: signal.Signals
) -> None:
    server = Process(short_directory)
    children = server.children()
    server.popen.send_signal(number)
    code, said = server.finish()
    lines = said.splitlines()
    assert (code, lines[0], lines[-1], len(lines)) == (
        0,
        STARTING,
        "arbora: stopped",
        4,
    )
    assert re.fullmatch(r"arbora: ready after \d+\.\d s", lines[1])
    assert lines[2].startswith("arbora: open http://")
    assert "in another terminal with `arbora chat --url http://" in lines[2]
    assert not any(map(is_alive, children))
    assert list(short_directory.iterdir()) == []


@pytest.mark.parametrize(
    ("labels", "path"), [([], "/v1/embeddings"), (["one"], "/v1/rerank"), (["a", "b"], "/v1/classify")]
)
def test_an_encoder_s_ready_lines_name_neither_a_kv_cache_nor_a_chat(labels: list[str], path: str) -> None:
    config = ServeConfig(model=Path("/nowhere"), served_model_name="fake")
    pooling = Pooling(4, is_normalized=True, reads_cache=False, takes_whole=True, labels=labels)
    ready = ModelReady([CacheGroup(1, None, 9, 64)], 512, 512, 8, 100, "cpu", pooling=pooling)
    assert ready_line(config, ready, "http://a") == (
        "Arbora serves fake at http://a on cpu (inputs of up to 512 tokens)"
    )
    said = next_step(config, ready, "http://a")
    assert said == f"its API is http://a/v1; this model serves {path}"
    ready.pooling = None
    assert "KV cache 4,608 tokens" in ready_line(config, ready, "http://a")
    assert "arbora chat --url http://a" in next_step(config, ready, "http://a")


def test_a_full_pipe_of_stderr_stops_neither_the_server_nor_its_processes(short_directory: Path) -> None:
    server = Process(short_directory, "work", "work", "chatty")
    server.popen.terminate()
    assert server.popen.wait(PATIENCE) == 0  # nobody reads its stderr
    server.finish()


def test_a_server_under_nohup_outlives_its_terminal(short_directory: Path) -> None:
    server = Process(short_directory, ignores_hangup=True)
    server.popen.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        server.popen.wait(0.5)
    server.popen.terminate()
    assert server.finish()[0] == 0


def test_a_second_signal_ends_a_server_that_still_drains(short_directory: Path) -> None:
    server = Process(short_directory, "work", "work", "deaf")
    events = server.private / "events"
    server.popen.send_signal(signal.SIGTERM)
    until(lambda: "Drain" in events.read_text())
    server.popen.send_signal(signal.SIGTERM)
    assert server.finish()[0] == 128 + signal.SIGTERM
    assert list(short_directory.iterdir()) == []


def test_children_do_not_outlive_a_killed_server_and_the_next_start_tidies_up(short_directory: Path) -> None:
    server = Process(short_directory)
    children = server.children()
    left_over = server.private
    server.popen.kill()
    server.popen.wait()
    until(lambda: not any(map(is_alive, children)))
    following = Process(short_directory)
    assert not left_over.exists()
    following.popen.terminate()
    following.finish()


def test_a_server_that_cannot_start_says_why_and_leaves_no_process(short_directory: Path) -> None:
    server = Process(short_directory, "work", "refuse")
    returncode, errors = server.finish()
    assert returncode == 2
    assert errors == f"{STARTING}\narbora: error: the model has a field that no one can read\n"
    assert list(short_directory.iterdir()) == []
