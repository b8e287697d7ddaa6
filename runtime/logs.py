"""The log of a server: all processes write lines in one format, and the last line may show progress."""

from __future__ import annotations

import atexit
import logging
import os
import select
import sys
import threading
import time
from contextlib import suppress

PROGRESS_VARIABLE = "ARBORA_PROGRESS"
"""environment variable of children whose output goes to a terminal"""
CLEAR = "\r\x1b[K"  # ECMA-48: to the first column, and erase the line
MAX_PENDING = 1 << 20  # characters of the log that may wait until stderr takes them
DRAIN_S = 1.0  # seconds that the end of a process waits for that
BETWEEN_S = 0.1  # minimal seconds between two changes of the line


def write_log(level: str) -> None:
    """Makes this process write its log messages of `level` and above to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines())
    logging.basicConfig(level=level.upper(), handlers=[handler])


def write_in_background() -> BackgroundWriter:
    """Makes the log of this process be written by a thread, and returns the writer."""
    writer = BackgroundWriter()
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and isinstance(handler.formatter, _Lines):
            handler.setStream(writer)
    return writer


class BackgroundWriter:
    """A stream whose texts a thread writes to stderr, so that a slow reader of stderr delays nothing else.
    Texts beyond `max_pending` characters are dropped, and a line says how many."""

    def __init__(self, max_pending: int = MAX_PENDING) -> None:
        self._max_pending = max_pending
        self._texts: list[str] = []
        self._pending = 0  # characters that are not written yet
        self._dropped = 0
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="log", daemon=True).start()
        atexit.register(self.drain)

    def write(self, text: str) -> None:
        with self._changed:
            if self._pending + len(text) > self._max_pending:
                self._dropped += 1
                return
            self._texts.append(text)
            self._pending += len(text)
            self._changed.notify_all()

    def flush(self) -> None:
        """Does nothing: the thread flushes."""

    def drain(self, seconds: float = DRAIN_S) -> None:
        """Waits until all texts are written, for at most `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._pending, seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._texts)
                text, dropped = "".join(self._texts), self._dropped
                self._texts, self._dropped = [], 0
            if dropped:
                end = "" if text.endswith("\n") else "\n"
                text += (
                    f"{end}arbora: warning: {dropped} messages are missing here: stderr is read too slowly\n"
                )
            with suppress(OSError, ValueError):  # stderr is closed
                _write_to_stderr(text)
            with self._changed:
                self._pending = sum(map(len, self._texts))
                self._changed.notify_all()


def _write_to_stderr(text: str) -> None:
    """Writes a text without the lock of `sys.stderr`, which the end of the process must not wait for."""
    try:
        descriptor = sys.stderr.fileno()
    except OSError:  # a stream in memory
        sys.stderr.write(text)
        return
    data = text.encode(errors="backslashreplace")
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:  # another program has made the shared descriptor non-blocking
            select.select([], [descriptor], [])


BARE = {"is_bare": True}
"""`extra` of a log message that is printed without the name of the program"""


def is_on_terminal() -> bool:
    """Whether stderr reaches a terminal that can erase a line."""
    if os.environ.get("TERM") == "dumb":
        return False
    try:
        return PROGRESS_VARIABLE in os.environ or sys.stderr.isatty()
    except ValueError:  # stderr is closed
        return False


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        clear = CLEAR if is_on_terminal() else ""
        if getattr(record, "is_bare", False):
            return clear + record.getMessage()
        kind = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        return f"{clear}arbora: {kind}{super().format(record)}"


class ProgressLine:
    """A line on the terminal that changes, below the log. Elsewhere, and with a higher log level, it shows
    nothing."""

    def __init__(self) -> None:
        self._is_shown = is_on_terminal() and logging.getLogger().isEnabledFor(logging.INFO)
        self._changed_at = 0.0

    def show(self, text: str) -> None:
        """Replaces the line, at most ten times a second."""
        if self._is_shown and time.monotonic() - self._changed_at >= BETWEEN_S:
            self._changed_at = time.monotonic()
            print(f"{CLEAR}arbora: {text}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Erases the line."""
        if self._is_shown:
            print(CLEAR, end="", file=sys.stderr, flush=True)
