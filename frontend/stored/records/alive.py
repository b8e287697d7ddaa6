"""Tells whether the process that works on a record still runs."""

from __future__ import annotations

import fcntl
import os
import secrets
from pathlib import Path


class AliveFile:
    """A file, named by `token`, that this process locks until it ends, also if it is killed."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.token = secrets.token_hex(8)
        self._path = _path(directory, self.token)
        self._descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def is_alive(directory: Path, token: str) -> bool:
    """Whether the process with this token runs. Removes the file of a process that has ended."""
    path = _path(directory, token)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        path.unlink(missing_ok=True)
        return False
    finally:
        os.close(descriptor)


def _path(directory: Path, token: str) -> Path:
    return directory / f"{token}.alive"
