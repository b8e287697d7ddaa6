"""The log lines of a server's processes."""

from __future__ import annotations

import importlib.util
import io
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from arbora.runtime.logs import CLEAR, PROGRESS_VARIABLE, BackgroundWriter
from arbora.runtime.model.compiling import CompilationNotice
from numba.core.event import install_listener

COMPILED = "from numba import njit\n\n\n@njit(cache=True)\ndef double(x):\n    return 2 * x\n"
SAYS = """
import logging
import os
from arbora.runtime.logs import write_log
write_log("info")
for name in ("arbora.scheduler", "uvicorn.error"):
    logging.getLogger(name).debug("details")
    logging.getLogger(name).info("news")
    logging.getLogger(name).warning("worries")
"""


WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
from arbora.runtime.model.compiling import announce_compilation
announce_compilation("cuda")
"""


def call_doubles(source: Path) -> None:
    """Calls a function with two types, in a fresh module: earlier compiled code is found only on disk."""
    spec = importlib.util.spec_from_file_location("doubles", source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (module.double(1), module.double(1.5)) == (2, 3.0)


def test_a_bare_line_has_nothing_around_it() -> None:
    says = 'import logging\nfrom arbora.runtime.logs import BARE, write_log\nwrite_log("info")\n'
    says += 'logging.getLogger("a").info("%s", "{}", extra=BARE)'
    said = subprocess.run([sys.executable, "-c", says], capture_output=True, text=True, check=True)
    assert said.stderr == "{}\n"


def test_every_line_has_the_same_format_in_all_processes() -> None:
    said = subprocess.run([sys.executable, "-c", SAYS], capture_output=True, text=True, check=True)
    assert said.stderr == 2 * "arbora: news\narbora: warning: worries\n"


def test_compilation_is_logged_once_and_only_if_it_happens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = tmp_path / "doubles.py"
    source.write_text(COMPILED)
    with caplog.at_level(logging.INFO), install_listener("numba:compile", CompilationNotice()):
        call_doubles(source)
        assert [message.partition(",")[0] for message in caplog.messages] == ["compiling kernels"]
    caplog.clear()
    with caplog.at_level(logging.INFO), install_listener("numba:compile", CompilationNotice()):
        call_doubles(source)
        assert caplog.messages == []


def test_compiled_triton_kernels_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    notice = CompilationNotice()
    with caplog.at_level(logging.INFO):
        notice.on_triton(cache_hit=True, src=None)
        assert caplog.messages == []
        for _ in range(2):
            notice.on_triton(cache_hit=False, src=None)
        assert len(caplog.messages) == 1


def test_compilation_can_be_announced_without_triton() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_TRITON], check=True)


SHOWS_PROGRESS = """
import logging, time
from arbora.runtime.logs import ProgressLine, write_log
write_log("info")
line = ProgressLine()
line.show("half")
line.show("too soon after the last")
time.sleep(0.11)
line.show("most")
logging.getLogger("a").info("news")
line.end()
"""


def test_progress_is_a_line_that_changes_below_the_log_of_a_terminal() -> None:
    command = [sys.executable, "-c", SHOWS_PROGRESS]
    said = [
        subprocess.run(
            command, env={**os.environ, "TERM": term, PROGRESS_VARIABLE: "1"}, capture_output=True, check=True
        ).stderr.decode()
        for term in ("xterm", "dumb")
    ]
    assert said[0].split(CLEAR) == ["", "arbora: half", "arbora: most", "arbora: news\n", ""]
    assert said[1] == "arbora: news\n"


def test_a_file_gets_no_progress() -> None:
    environment = {name: value for name, value in os.environ.items() if name != PROGRESS_VARIABLE}
    said = subprocess.run(
        [sys.executable, "-c", SHOWS_PROGRESS], env=environment, capture_output=True, check=True
    )
    assert said.stderr == b"arbora: news\n"


class SlowStderr(io.StringIO):
    """A stream that takes nothing until it may."""

    def __init__(self) -> None:
        super().__init__()
        self.is_busy, self.may_take = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.is_busy.set()
        self.may_take.wait(10)
        return super().write(text)


def test_a_slow_reader_of_the_log_delays_nobody_and_learns_how_much_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stderr = SlowStderr()
    monkeypatch.setattr(sys, "stderr", stderr)
    writer = BackgroundWriter(max_pending=60)
    writer.write("the first line\n")
    assert stderr.is_busy.wait(10)
    for number in range(100):  # would never return if it waited for stderr
        writer.write(f"line {number:02}, twenty chars\n"[:20] + "\n")
    writer.drain(0.01)
    assert stderr.getvalue() == ""
    stderr.may_take.set()
    writer.drain()
    first, second, third, missing = stderr.getvalue().splitlines()
    assert (first, second[:7], third[:7]) == ("the first line", "line 00", "line 01")
    assert missing == "arbora: warning: 98 messages are missing here: stderr is read too slowly"


def test_lines_that_wait_are_written_before_the_process_ends() -> None:
    says = "from arbora.runtime.logs import write_in_background, write_log\nimport logging\n"
    says += 'write_log("info")\nwrite_in_background()\n'
    says += 'for number in range(500): logging.getLogger("a").info("line %d", number)'
    said = subprocess.run([sys.executable, "-c", says], capture_output=True, text=True, check=True)
    assert said.stderr.splitlines() == [f"arbora: line {number}" for number in range(500)]


def test_a_closed_stderr_ends_no_process() -> None:
    says = "import os, logging\nfrom arbora.runtime.logs import write_in_background, write_log\n"
    says += 'write_log("info")\nwrite_in_background()\nos.close(2)\n'
    says += 'for number in range(50): logging.getLogger("a").info("line %d", number)\nprint("done")'
    said = subprocess.run([sys.executable, "-c", says], capture_output=True, text=True, timeout=60)
    assert said.stdout == "done\n"


def test_a_stderr_that_another_program_made_non_blocking_gets_all_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with os.fdopen(writing, "w") as stderr, os.fdopen(reading) as reader:
        monkeypatch.setattr(sys, "stderr", stderr)
        writer = BackgroundWriter()
        lines = [f"line {number} {'x' * 100}" for number in range(3000)]  # more than the pipe holds
        writer.write("\n".join(lines) + "\n")
        assert [reader.readline().rstrip("\n") for _ in lines] == lines
        writer.drain()
