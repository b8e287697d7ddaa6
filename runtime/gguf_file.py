"""Reads the header of a GGUF file: its metadata, and the position of each tensor.

The library `gguf` reads the same, but takes seconds for a large vocabulary. The tests compare the two.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from .errors import ConfigError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""the struct format of each kind of number"""
STRING, ARRAY = 8, 9
MAX_DIMENSIONS = 4

Value = int | float | bool | str | list[int] | list[float] | list[str]


class BlockSize(NamedTuple):
    elements: int
    bytes: int


TENSOR_TYPES = {
    0: ("F32", BlockSize(1, 4)),
    1: ("F16", BlockSize(1, 2)),
    2: ("Q4_0", BlockSize(32, 18)),
    3: ("Q4_1", BlockSize(32, 20)),
    6: ("Q5_0", BlockSize(32, 22)),
    7: ("Q5_1", BlockSize(32, 24)),
    8: ("Q8_0", BlockSize(32, 34)),
    12: ("Q4_K", BlockSize(256, 144)),
    13: ("Q5_K", BlockSize(256, 176)),
    14: ("Q6_K", BlockSize(256, 210)),
    20: ("IQ4_NL", BlockSize(32, 18)),
    30: ("BF16", BlockSize(1, 2)),
    39: ("MXFP4", BlockSize(32, 17)),
}
"""name and block size of each tensor type, by its number in the file"""
OTHER_TYPES = {
    10: "Q2_K",
    11: "Q3_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    40: "NVFP4",
}
"""names of tensor types that can't be loaded, by number, for errors"""


class TensorPlace(NamedTuple):
    shape: tuple[int, ...]
    """the slowest dimension first, as in PyTorch; the file has the reverse"""
    type: str
    begin: int
    """offset of the tensor in the file in bytes"""
    bytes: int


class GgufFile:
    """A GGUF file: its metadata by key, and its tensors by their names in the file."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError for a damaged file, with the key or tensor at which reading failed."""
        self.path = path
        try:
            with path.open("rb") as file:
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except ValueError:  # an empty file can't be mapped
            raise ConfigError(f"{path} is empty. Download it again.") from None
        except OSError as error:
            raise ConfigError(f"{path} can't be read: {error}") from None
        reader = _Reader(path, self.data)
        tensors, pairs = reader.counts()
        self.metadata: dict[str, Value] = {}
        for index in range(pairs):
            key = reader.name(f"metadata key {index + 1} of {pairs}")
            self.metadata[key] = reader.value(key)
        infos = [reader.tensor_info(index, tensors) for index in range(tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise ConfigError(f"{path}: general.alignment {alignment} must be a positive number.")
        start = -(-reader.at // alignment) * alignment
        self.tensors = {info[0]: _place(path, start, len(self.data), *info) for info in infos}

    def floats(self, name: str) -> list[float]:
        """The values of a tensor of the type F32."""
        place = self.tensors[name]
        if place.type != "F32":
            raise ConfigError(f"{self.path}: tensor {name}: expected the type F32, got {place.type}.")
        return list(struct.unpack_from(f"<{place.bytes // 4}f", self.data, place.begin))


class _Reader:
    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._what = "its first bytes"
        self.at = 0

    def counts(self) -> tuple[int, int]:
        """Reads the number of tensors and the number of metadata keys."""
        if self._data[:4] != MAGIC:
            raise ConfigError(f"{self._path} is not a GGUF file: it begins with {self._data[:4]!r}.")
        self.at = 4
        (version,) = self._unpack("I")
        if version not in VERSIONS:
            raise ConfigError(
                f"{self._path}: GGUF version {version} is not supported, only 2 and 3 "
                "(little-endian). Convert the model again with a current llama.cpp."
            )
        tensors, pairs = self._unpack("QQ")
        return tensors, pairs

    def name(self, what: str) -> str:
        self._what = what
        return self._string()

    def value(self, key: str) -> Value:
        self._what = f"the value of {key}"
        (kind,) = self._unpack("I")
        return self._value(kind)

    def tensor_info(self, index: int, count: int) -> tuple[str, tuple[int, ...], int, int]:
        """Reads a tensor's name, shape, type and offset."""
        name = self.name(f"the name of tensor {index + 1} of {count}")
        self._what = f"the description of tensor {name}"
        (dimensions,) = self._unpack("I")
        if dimensions > MAX_DIMENSIONS:
            raise ConfigError(f"{self._path}: tensor {name} has {dimensions} dimensions; the file is broken.")
        shape = self._unpack(f"{dimensions}Q")
        kind, offset = self._unpack("IQ")
        return name, tuple(reversed(shape)), kind, offset

    def _value(self, kind: int) -> Value:
        if kind in SCALARS:
            (number,) = self._unpack(SCALARS[kind])
            scalar: Value = number
            return scalar
        if kind == STRING:
            return self._string()
        if kind != ARRAY:
            raise ConfigError(f"{self._path}: {self._what} has the unknown kind {kind}; the file is broken.")
        item, count = self._unpack("IQ")
        self._check(count)  # each item takes at least one byte
        if item in SCALARS:
            return [*self._unpack(f"{count}{SCALARS[item]}")]
        if item == STRING:
            return [*self._strings(count)]
        raise ConfigError(
            f"{self._path}: {self._what} is a list of the kind {item}; lists must be of numbers or strings."
        )

    def _string(self) -> str:
        return next(self._strings(1))

    def _strings(self, count: int) -> Iterator[str]:
        """Reads strings. It is fast because vocabularies have hundreds of thousands of them."""
        data, end, unpack = self._data, len(self._data), struct.Struct("<Q").unpack_from
        for _ in range(count):
            self._check(8)
            begin = self.at + 8
            self.at = begin + unpack(data, self.at)[0]
            if self.at > end:
                self._check(0)
            yield data[begin : self.at].decode("utf-8", "replace")

    def _unpack(self, layout: str) -> tuple[int, ...]:
        size = struct.calcsize(f"<{layout}")
        self._check(size)
        self.at += size
        return struct.unpack_from(f"<{layout}", self._data, self.at - size)

    def _check(self, size: int) -> None:
        if self.at + size > len(self._data):
            raise ConfigError(
                f"{self._path} ends at byte {len(self._data):,}, within {self._what}. Download it again."
            )


def _place(
    path: Path, start: int, end: int, name: str, shape: tuple[int, ...], kind: int, offset: int
) -> TensorPlace:
    if kind not in TENSOR_TYPES:
        raise ConfigError(
            f"{path}: tensor {name} has the type {OTHER_TYPES.get(kind, kind)}, which is not supported. "
            f"Supported: {', '.join(type_name for type_name, _ in TENSOR_TYPES.values())}; files named "
            "Q4_K_M, Q5_K_M, Q6_K or Q8_0 have only these."
        )
    type_name, block = TENSOR_TYPES[kind]
    if not shape or shape[-1] % block.elements:
        raise ConfigError(
            f"{path}: tensor {name} of {type_name} has the shape {list(shape)}; its rows must be multiples "
            f"of {block.elements}."
        )
    size = math.prod(shape) // block.elements * block.bytes
    if start + offset + size > end:
        raise ConfigError(
            f"{path} ends at byte {end:,}, but tensor {name} needs bytes {start + offset:,} to "
            f"{start + offset + size:,}. Download it again."
        )
    return TensorPlace(shape, type_name, start + offset, size)
