"""Reads and checks the metadata of a GGUF file."""

from __future__ import annotations

import reprlib
from typing import TypeVar

from ....runtime.errors import ConfigError
from ....runtime.gguf_file import GgufFile

Scalar = TypeVar("Scalar", int, float, str)

LARGEST = 2**31 - 1
"""The maximum of all numbers in the metadata except the number of layers."""


class Metadata:
    """Reads a file's metadata. Keys of its architecture lack their prefix. Numbers must be positive."""

    def __init__(self, file: GgufFile) -> None:
        self.file = file
        self.architecture = self._read("general.architecture", str)

    def require(self, key: str, kind: type[Scalar]) -> Scalar:
        return self._read(f"{self.architecture}.{key}", kind)

    def find(self, key: str, kind: type[Scalar]) -> Scalar | None:
        """The key's value, or None. Some files write 0 for no value, which gives None too."""
        full = f"{self.architecture}.{key}"
        return self._read(full, kind) if self.file.metadata.get(full, 0) != 0 else None

    def find_list(self, key: str, kind: type[int], length: int) -> list[int] | None:
        """The first numbers of a list with one for each layer; None if the value is missing or no list."""
        full = f"{self.architecture}.{key}"
        value = self.file.metadata.get(full)
        if not isinstance(value, list):
            return None
        numbers = [item for item in value[:length] if isinstance(item, kind) and 0 <= item <= LARGEST]
        if len(numbers) < length:
            raise self.wrong(full, f"should have a value of the type {kind.__name__} for each layer", value)
        return numbers

    def _read(self, key: str, kind: type[Scalar]) -> Scalar:
        value = self.file.metadata.get(key)
        if kind is float and isinstance(value, int):
            value = float(value)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.wrong(key, f"should be of the type {kind.__name__}", value)
        if not isinstance(value, str) and not 0 < value <= LARGEST:
            raise self.wrong(key, f"should be above 0 and at most {LARGEST}", value)
        return value

    def wrong(self, key: str, problem: str, value: object) -> ConfigError:
        return ConfigError(
            f"{self.file.path}: the metadata key {key} {problem}, found {reprlib.repr(value)}."
        )
