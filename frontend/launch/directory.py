"""The private directory of a running server: ipc sockets, config.json, the vocabulary file."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path

from ...runtime.config import ServeConfig
from ...runtime.errors import ConfigError
from ...runtime.processes.sockets import check_directory

PREFIX = "arbora-run-"
MAX_PARENT_PATH = 60  # bytes; an ipc path has at most 107 bytes, with the longest socket name


class PrivateDirectory:
    """A directory (mode 0700) that is locked while its owner lives.

    The system releases the lock when the process ends, in any way. So a directory that can be locked was left
    by a server that was killed; `open` removes such directories first.
    """

    def __init__(self, path: Path, lock: int) -> None:
        self.path = path
        self._lock = lock

    @classmethod
    def with_config(cls, config: ServeConfig) -> PrivateDirectory:
        """Makes a server's directory with its config.json. Raises ConfigError if that can't be written."""
        with contextlib.ExitStack() as stack:
            try:
                directory = cls.open()
                stack.callback(directory.close)
                config.save(directory.path)
            except OSError as error:
                raise ConfigError(
                    f"the directory for temporary files can't be written ({error}). Free some of its space, "
                    "or name another directory in TMPDIR."
                ) from error
            stack.pop_all()
            return directory

    @classmethod
    def open(cls, parent: Path | None = None) -> PrivateDirectory:
        parent = parent or _parent()
        remove_stale_directories(parent)
        while True:
            path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
            lock = _locked(path)
            if lock is not None:
                check_directory(path)
                return cls(path, lock)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _locked(path: Path) -> int | None:
    """Locks the directory; None if another server took it for stale and removed it first."""
    try:
        lock = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    fcntl.flock(lock, fcntl.LOCK_EX)
    if path.exists():
        return lock
    os.close(lock)
    return None


def remove_stale_directories(parent: Path) -> None:
    """Removes the directories in `parent` that this user's killed servers left."""
    for path in parent.glob(PREFIX + "*"):
        with contextlib.suppress(FileNotFoundError):  # its owner removed it meanwhile
            if stat.S_ISDIR((found := path.lstat()).st_mode) and found.st_uid == os.getuid():
                _remove_if_stale(path)


def _remove_if_stale(path: Path) -> None:
    try:
        lock = os.open(path, os.O_RDONLY)
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path, ignore_errors=True)
    except BlockingIOError:
        pass
    finally:
        os.close(lock)


def _parent() -> Path:
    parent = tempfile.gettempdir()
    return Path(parent if len(os.fsencode(parent)) <= MAX_PARENT_PATH else "/tmp")
