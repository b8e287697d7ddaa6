"""The private directory of a running server: ipc sockets, config.json, the vocabulary file, server.json."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ...runtime.config import ServeConfig
from ...runtime.errors import ConfigError
from ...runtime.processes.sockets import SUPERVISOR, check_directory, model_directory

PREFIX = "arbora-run-"
SERVER_FILE = "server.json"
MAX_PARENT_PATH = 60  # bytes; an ipc path has at most 107 bytes, with the longest socket name


class RunningServer(msgspec.Struct, frozen=True):
    """A server that serves HTTP, as it describes itself in its private directory."""

    model: str
    url: str
    """its address; for a Unix socket `unix:PATH`"""
    pid: int
    started: float
    """in seconds since 1970"""
    is_ready: bool = False
    """whether it has been ready"""


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
                for number, each in enumerate(config.list_models()):
                    _add_model(directory.path, number, each if number else config)
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

    def describe(self, server: RunningServer) -> None:
        """Writes the description of the server that owns the directory, for `find_servers`."""
        written = self.path / (SERVER_FILE + ".part")
        written.write_bytes(msgspec.json.encode(server))
        written.replace(self.path / SERVER_FILE)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _add_model(server: Path, number: int, config: ServeConfig) -> None:
    """Makes the directory of a model, whose children find the supervisor there too."""
    directory = model_directory(server, number)
    if number:
        directory.mkdir(mode=0o700)
        (directory / SUPERVISOR).symlink_to(Path("..") / SUPERVISOR)
    config.save(directory)


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


def find_servers(parent: Path | None = None) -> list[RunningServer]:
    """This user's servers that run with the same directory for temporary files, the oldest first."""
    found = []
    for path in _own_directories(parent or _parent()):
        with contextlib.suppress(OSError, msgspec.DecodeError):  # an Engine's directory has no such file
            server = msgspec.json.decode((path / SERVER_FILE).read_bytes(), type=RunningServer)
            with _stale_lock(path) as is_stale:
                if not is_stale:
                    found.append(server)
    return sorted(found, key=lambda server: server.started)


def remove_stale_directories(parent: Path) -> None:
    """Removes the directories in `parent` that this user's killed servers left."""
    for path in _own_directories(parent):
        with contextlib.suppress(OSError), _stale_lock(path) as is_stale:
            if is_stale:
                shutil.rmtree(path, ignore_errors=True)


def _own_directories(parent: Path) -> Iterator[Path]:
    """The private directories in `parent` of this user's processes, dead ones too."""
    for path in parent.glob(PREFIX + "*"):
        with contextlib.suppress(FileNotFoundError):  # its owner removed it meanwhile
            if stat.S_ISDIR((found := path.lstat()).st_mode) and found.st_uid == os.getuid():
                yield path


@contextlib.contextmanager
def _stale_lock(path: Path) -> Iterator[bool]:
    """Yields whether the directory's owner is dead. Then the directory is locked in the block. Raises OSError
    if it can't be opened."""
    lock = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_stale = True
    except BlockingIOError:
        is_stale = False
    try:
        yield is_stale
    finally:
        os.close(lock)


def _parent() -> Path:
    parent = tempfile.gettempdir()
    return Path(parent if len(os.fsencode(parent)) <= MAX_PARENT_PATH else "/tmp")
