"""The log of a server: lines of one format from all processes."""

from __future__ import annotations

import logging


def write_log(level: str) -> None:
    """Writes this process' log to stderr from now on, from `level` up."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines())
    logging.basicConfig(level=level.upper(), handlers=[handler])


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        kind = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        return f"arbora: {kind}{super().format(record)}"
