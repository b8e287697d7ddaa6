"""A program on a pseudo-terminal: what it writes is read, and keys are typed."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 60.0
ROWS, COLUMNS = 40, 100
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[()][A-Z0-9]|\x1b[=>]|\r")
ENTER, ALT_ENTER, CTRL_C, CTRL_D, TAB, UP = "\r", "\x1b\r", "\x03", "\x04", "\t", "\x1b[A"


class Terminal:
    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self._master = master
        self._raw = ""
        self._seen = 0

    def wait_for(self, text: str, seconds: float = PATIENCE) -> str:
        """Waits until `text` was written after the last match, and returns all that was written up to it."""
        deadline = time.monotonic() + seconds
        while text not in (shown := _CONTROL.sub("", self._raw)[self._seen :]):
            assert time.monotonic() < deadline, f"{text!r} was not written, but: {shown}"
            self._read()
        end = shown.index(text) + len(text)
        self._seen += end
        return shown[:end]

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def exit_code(self) -> int:
        while self.process.poll() is None:
            self._read()
        return self.process.returncode

    def _read(self) -> None:
        if select.select([self._master], [], [], 0.1)[0]:
            try:
                self._raw += os.read(self._master, 65536).decode(errors="replace")
            except OSError:  # the program has ended
                time.sleep(0.05)


@contextmanager
def terminal(arguments: Sequence[str], **environment: str | Path) -> Iterator[Terminal]:
    """`python -m arbora` with these arguments."""
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (ROWS, COLUMNS))
    size = {"COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
    own = {"TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1", **size}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "arbora", *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, **own, **{name: str(value) for name, value in environment.items()}},
        preexec_fn=_take_terminal,
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        process.kill()
        process.wait()
        os.close(master)


def _take_terminal() -> None:
    """Makes the terminal the session's, and lets Ctrl-C end it even in a background job of a shell."""
    import fcntl

    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
