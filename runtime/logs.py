"""The log of a server: lines of one form, whichever of its processes writes them."""

from __future__ import annotations

import logging


def write_log(level: str) -> None:
    """Begin with it: this process' log goes to stderr from now on, what is less than `level` left out."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines())
    logging.basicConfig(level=level.upper(), handlers=[handler])


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        kind = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        return f"arbora: {kind}{super().format(record)}"
