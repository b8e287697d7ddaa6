"""The log of a server: all processes write lines in one format."""

from __future__ import annotations

import logging


def write_log(level: str) -> None:
    """Makes this process write its log messages of `level` and above to stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Lines())
    logging.basicConfig(level=level.upper(), handlers=[handler])


BARE = {"is_bare": True}
"""`extra` of a message that is a line as it stands, without the name of the program"""


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        if getattr(record, "is_bare", False):
            return record.getMessage()
        kind = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        return f"arbora: {kind}{super().format(record)}"
