"""Compiled grammars on disk, for the next start of a server.

A file's name is a hash of the grammar, the vocabulary and the version of these sources. It holds a SHA-256 of
its content, so that a damaged file is never used.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

import msgspec

from ...runtime.automaton_format import pack_array, unpack_array
from ...runtime.compiled_code import version
from ..machine.automaton import Automaton

MAX_BYTES = 256 << 20
FOLDER = Path(__file__).parents[1]  # folder of this package's sources
_DIGEST_BYTES = 32

log = logging.getLogger("arbora.grammars")


_encoder = msgspec.msgpack.Encoder(enc_hook=pack_array)
_decoder = msgspec.msgpack.Decoder(Automaton, dec_hook=unpack_array)


class GrammarFiles:
    """The files of one directory, shared with other processes. Thread-safe.

    `vocabulary` names the vocabulary of the masks. When the files exceed `max_bytes` together, the least
    recently used ones are deleted. A directory that can't be used counts as empty.
    """

    def __init__(self, directory: Path, vocabulary: str, max_bytes: int = MAX_BYTES) -> None:
        self._directory = directory
        self._made_by = f"{version(FOLDER)} {vocabulary} "
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()  # sizes in bytes, least recently used file first
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = [(entry.name, entry.stat()) for entry in os.scandir(directory)]
            found.sort(key=lambda entry: entry[1].st_mtime)
            self._sizes.update((name, stat.st_size) for name, stat in found)
        except OSError as error:
            log.warning("compiled grammars are not kept in %s: %s", directory, error)

    def get(self, key: str) -> Automaton | None:
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        with suppress(OSError):  # the directory may be another user's
            os.utime(path)
        with self._lock:
            self._sizes[path.name] = len(data)
            self._sizes.move_to_end(path.name)
        try:
            return _decode(data, key)
        except ValueError as error:
            log.warning("the compiled grammar in %s is not used: %s", path, error)
            return None

    def put(self, automaton: Automaton) -> None:
        path = self._path(automaton.key)
        data = _encode(automaton)
        unfinished = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        try:
            unfinished.write_bytes(data)
            unfinished.replace(path)
        except OSError as error:
            log.warning("a compiled grammar could not be kept in %s: %s", path, error)
            return
        with self._lock:
            self._sizes[path.name] = len(data)
            self._sizes.move_to_end(path.name)
            self._trim()

    def _path(self, key: str) -> Path:
        return self._directory / hashlib.sha256((self._made_by + key).encode()).hexdigest()

    def _trim(self) -> None:
        total = sum(self._sizes.values())
        while total > self._max_bytes and len(self._sizes) > 1:
            name, size = self._sizes.popitem(last=False)
            total -= size
            with suppress(OSError):
                (self._directory / name).unlink()


def default_directory() -> Path:
    """The directory `arbora/grammars` in the user's cache directory."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "arbora" / "grammars"


def _encode(automaton: Automaton) -> bytes:
    body = _encoder.encode(automaton)
    return hashlib.sha256(body).digest() + body


def _decode(data: bytes, key: str) -> Automaton:
    """The automaton. Raises ValueError unless `_encode` wrote the data for this key."""
    body = data[_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != data[:_DIGEST_BYTES]:
        raise ValueError("its checksum is wrong")
    automaton = _decoder.decode(body)
    if automaton.key != key:
        raise ValueError("it is another grammar's")
    return automaton
