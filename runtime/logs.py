"""The log of a server: all processes write lines in one format, and the last line may show progress."""

from __future__ import annotations

import logging
import os
import sys
import time

PROGRESS_VARIABLE = "ARBORA_PROGRESS"
"""environment variable of children whose output goes to a terminal"""
CLEAR = "\r\x1b[K"  # ECMA-48: to the first column, and erase the line
BETWEEN_S = 0.1  # minimal seconds between two changes of the line


def write_log(level: str) -> None:
    """Makes this process write its log messages of `level` and above to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines())
    logging.basicConfig(level=level.upper(), handlers=[handler])


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
