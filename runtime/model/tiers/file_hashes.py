"""Hashes of large files, kept until the files change."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec


class _Known(msgspec.Struct, array_like=True, frozen=True):
    """A file's state when it was hashed, and its SHA-256."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int
    digest: bytes

    def matches(self, path: Path) -> bool:
        return self == _describe_file(path, self.digest)


class FileHashes:
    """`memory`: the file that keeps the hashes. If it is None or unreadable, files are hashed again."""

    def __init__(self, memory: Path | None) -> None:
        self._memory = memory

    def hash_all(self, paths: Iterable[Path]) -> list[bytes]:
        """The SHA-256 of each file."""
        files = [path.resolve() for path in paths]
        known = self._read()
        stale = [path for path in files if str(path) not in known or not known[str(path)].matches(path)]
        with ThreadPoolExecutor() as threads:
            known |= zip(map(str, stale), threads.map(_hash_file, stale), strict=True)
        if stale:
            self._write(known)
        return [known[str(path)].digest for path in files]

    def _read(self) -> dict[str, _Known]:
        if self._memory is None:
            return {}
        try:
            return msgspec.json.decode(self._memory.read_bytes(), type=dict[str, _Known])
        except (OSError, msgspec.DecodeError):
            return {}

    def _write(self, known: dict[str, _Known]) -> None:
        if self._memory is None:
            return
        present = {path: each for path, each in known.items() if os.path.exists(path)}
        fresh = self._memory.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):  # if it fails, the next start takes longer
            fresh.write_bytes(msgspec.json.encode(present))
            fresh.replace(self._memory)


def _hash_file(path: Path) -> _Known:
    """Takes the file's state before hashing, so a file that changes meanwhile is hashed again."""
    state = _describe_file(path, b"")
    with path.open("rb") as file:
        return msgspec.structs.replace(state, digest=hashlib.file_digest(file, "sha256").digest())


def _describe_file(path: Path, digest: bytes) -> _Known:
    state = path.stat()
    return _Known(state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns, digest)
