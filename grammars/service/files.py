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
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from ..machine.packed_rows import PackedRows
from ..machine.stack_automaton import StackAutomaton
from ..masks.stack import MaskTables
from .automaton import Automaton

MOST_BYTES = 256 << 20
_DIGEST_BYTES = 32
Part = TypeVar("Part", StackAutomaton, MaskTables, PackedRows)

log = logging.getLogger("arbora.grammars")


class _Array(msgspec.Struct, array_like=True):
    dtype: str
    shape: list[int]
    data: bytes


_Fields = dict[str, int | _Array]


class _Content(msgspec.Struct, array_like=True):
    key: str
    machine: _Fields
    masks: _Fields
    rows: _Fields
    left_out: tuple[tuple[str, str], ...]


_decoder = msgspec.msgpack.Decoder(_Content)


class GrammarFiles:
    """The files of one directory, shared with other processes. Thread-safe.

    `vocabulary` names the vocabulary of the masks. The least recently used files are deleted when all take
    more than `most_bytes`. A directory that can't be used counts as empty.
    """

    def __init__(self, directory: Path, vocabulary: str, most_bytes: int = MOST_BYTES) -> None:
        self._directory = directory
        self._made_by = f"{_version()} {vocabulary} "
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict()  # least recently used first
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
            os.utime(path)
        except OSError:
            return None
        with self._lock:
            self._sizes[path.name] = len(data)
            self._sizes.move_to_end(path.name)
        try:
            return _decoded(data, key)
        except ValueError as error:
            log.warning("the compiled grammar in %s is not used: %s", path, error)
            return None

    def put(self, key: str, automaton: Automaton) -> None:
        path = self._path(key)
        data = _encoded(key, automaton)
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
        while total > self._most_bytes and len(self._sizes) > 1:
            name, size = self._sizes.popitem(last=False)
            total -= size
            with suppress(OSError):
                (self._directory / name).unlink()


def default_directory() -> Path:
    """The directory `arbora/grammars` in the user's cache directory."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "arbora" / "grammars"


def _encoded(key: str, automaton: Automaton) -> bytes:
    parts = (_packed(automaton.machine), _packed(automaton.masks), _packed(automaton.rows))
    body = msgspec.msgpack.encode(_Content(key, *parts, automaton.left_out))
    return hashlib.sha256(body).digest() + body


def _decoded(data: bytes, key: str) -> Automaton:
    """The automaton. Raises ValueError unless `_encoded` wrote the data for this key."""
    body = data[_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != data[:_DIGEST_BYTES]:
        raise ValueError("its checksum is wrong")
    content = _decoder.decode(body)
    if content.key != key:
        raise ValueError("it is another grammar's")
    return Automaton(
        key,
        _unpacked(StackAutomaton, content.machine),
        _unpacked(MaskTables, content.masks),
        _unpacked(PackedRows, content.rows),
        content.left_out,
    )


def _packed(part: StackAutomaton | MaskTables | PackedRows) -> _Fields:
    return {field.name: _value(getattr(part, field.name)) for field in fields(part)}


def _value(value: Any) -> int | _Array:
    return value if isinstance(value, int) else _Array(value.dtype.str, list(value.shape), value.tobytes())


def _unpacked(kind: type[Part], values: _Fields) -> Part:
    def array(packed: _Array) -> np.ndarray[Any, Any]:
        return np.frombuffer(packed.data, packed.dtype).reshape(packed.shape)

    unpacked: dict[str, Any] = {
        name: array(value) if isinstance(value, _Array) else value for name, value in values.items()
    }
    return kind(**unpacked)


@cache
def _version() -> str:
    """A hash of all sources of this package."""
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()
