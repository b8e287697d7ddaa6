"""Counts the values and levels of a JSON text without decoding it.

A decoder lets no other thread run until it is done, which takes seconds for 32 MiB of empty lists. numpy lets
other threads run during each operation.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CHUNK_BYTES = 1 << 20
_QUOTE, _BACKSLASH, _COMMA, _OPEN, _CLOSE = (ord(character) for character in '"\\,{}')
_LOWER = 0x20  # makes `[` a `{`, and `]` a `}`


@dataclass
class JsonShape:
    """The counts so far. `values` and `fields` (of the outermost object) are counted by commas and opening
    brackets, so they may be a little too high."""

    depth: int = 0
    containers: int = 0
    strings: int = 0
    values: int = 0
    fields: int = 0


class ShapeReader:
    """Reads a JSON text in chunks. The counts are meaningless for a text that is not JSON."""

    def __init__(self) -> None:
        self.shape = JsonShape()
        self._depth = 0
        self._quotes = 0
        self._in_string = False
        self._first_is_escaped = False

    def read(self, chunk: bytes) -> None:
        data = np.frombuffer(chunk, np.uint8)
        quotes = data == _QUOTE
        quotes[self._escaped(data)] = False
        inside = np.bitwise_xor.accumulate(quotes.view(np.uint8)).view(np.bool_)
        if self._in_string:
            np.logical_not(inside, out=inside)
        self._in_string = bool(inside[-1])
        outside = np.logical_not(inside, out=inside)
        folded = data | _LOWER
        opens, closes = (folded == _OPEN) & outside, (folded == _CLOSE) & outside
        commas = (data == _COMMA) & outside
        depths = np.cumsum(opens.view(np.int8) - closes.view(np.int8), dtype=np.int32)
        depths += self._depth
        self._depth = int(depths[-1])
        shape, opened = self.shape, int(np.count_nonzero(opens))
        shape.depth = max(shape.depth, int(depths.max()))
        shape.containers += opened
        self._quotes += int(np.count_nonzero(quotes))
        shape.strings = self._quotes // 2
        shape.values += opened + int(np.count_nonzero(commas))
        shape.fields += int(np.count_nonzero(commas & (depths == 1)))

    def _escaped(self, data: NDArray[np.uint8]) -> NDArray[np.intp]:
        """The positions after an odd number of backslashes."""
        backslashes = data == _BACKSLASH
        first_is_escaped, self._first_is_escaped = self._first_is_escaped, False
        if first_is_escaped:
            backslashes[0] = False
        places = np.flatnonzero(backslashes)
        begins = np.flatnonzero(np.diff(places, prepend=-2) != 1)
        lengths = np.diff(begins, append=len(places))
        after = places[begins] + lengths
        after = after[lengths % 2 == 1]
        if len(after) and after[-1] == len(data):
            self._first_is_escaped = True
            after = after[:-1]
        return np.concatenate((np.zeros(1, np.intp), after)) if first_is_escaped else after


def shape_of(text: bytes) -> Generator[JsonShape, None, JsonShape]:
    """Yields the shape so far after each chunk, and returns the shape of the whole text."""
    reader = ShapeReader()
    for start in range(0, len(text), CHUNK_BYTES):
        reader.read(text[start : start + CHUNK_BYTES])
        yield reader.shape
    return reader.shape
