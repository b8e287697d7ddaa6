"""Limits on the size and shape of a request's JSON, which is counted without decoding it.

A decoder lets no other thread run until it is done, which takes seconds for 32 MiB of empty lists. numpy lets
other threads run during each operation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from msgspec import MsgspecError, Raw
from msgspec.json import decode
from numpy.typing import NDArray

from ...runtime.errors import RequestError
from ..core.validation import invalid_field
from ..core.work.thread_pool import Steps

MAX_DEPTH = 256
MAX_FIELDS = 1024
MAX_CONTAINERS = 1 << 17  # lists and objects of a body
MAX_STRINGS = 1 << 18
MAX_VALUES = 1 << 21  # values of a body, such as two million token ids
MAX_FIELD_BYTES = 128 * 1024  # bytes of a field that has no entry in `_FIELD_BYTES`
MAX_GRAMMAR_BYTES = 4 * 1024 * 1024  # bytes of a field with a grammar, which has at most a million characters
MAX_TOOLS_BYTES = 4 * 1024 * 1024
MAX_TEMPLATE_KWARGS_BYTES = 64 * 1024
CHUNK_BYTES = 1 << 20
UNSCANNED_BYTES = 64 * 1024  # a smaller body can't have too many values, so they are not counted

_QUOTE, _BACKSLASH, _COMMA, _OPEN, _CLOSE = (ord(character) for character in '"\\,{}')
_LOWER = 0x20  # the bit that turns `[` into `{`, and `]` into `}`
_GRAMMARS = (
    "response_format",
    "output_config",
    "output_format",
    "format",
    "text",
    "structured_outputs",
    "regex",
    "choice",
    "json_schema",
    "grammar",
    "ebnf",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
)
_FIELD_BYTES: dict[str, int | None] = {
    "messages": None,
    "system": None,
    "instructions": None,
    "input": None,
    "items": None,
    "prompt": None,
    "prediction": None,
    "prompt_token_ids": None,
    "tokens": None,
    **dict.fromkeys(("query", "queries", "documents", "text_1", "text_2", "data_1", "data_2")),
    "tools": MAX_TOOLS_BYTES,
    "chat_template_kwargs": MAX_TEMPLATE_KWARGS_BYTES,
    **dict.fromkeys(_GRAMMARS, MAX_GRAMMAR_BYTES),
}


def check_shape(body: bytes) -> Steps[None]:
    """Raises `RequestError` for JSON with too many values or levels."""
    if len(body) <= UNSCANNED_BYTES and body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return
    reader = ShapeReader()
    for start in range(0, len(body), CHUNK_BYTES):
        reader.read(body[start : start + CHUNK_BYTES])
        _check(reader.shape, body)
        yield


def _check(shape: JsonShape, body: bytes) -> None:
    if shape.depth > MAX_DEPTH:
        raise RequestError(
            f"The request's JSON is nested more than {MAX_DEPTH} levels deep.",
            code="invalid_json",
        )
    found = {
        "fields": (shape.fields, MAX_FIELDS),
        "lists and objects": (shape.containers, MAX_CONTAINERS),
        "strings": (shape.strings, MAX_STRINGS),
        "values": (shape.values, MAX_VALUES),
    }
    for things, (count, most) in found.items():
        if count > most:
            largest = _largest_field(body) if things != "fields" else None
            where = f", most of them in {largest}" if largest else ""
            raise RequestError(
                f"The request's JSON has more than {most:,} {things}{where}: send less in one request.",
                param=largest,
                code="invalid_json",
            )


def _largest_field(body: bytes) -> str | None:
    """The name of the field with the longest JSON; None if the body is not valid."""
    try:
        fields = decode(body, type=dict[str, Raw])
    except (MsgspecError, RecursionError):
        return None
    longest = max(fields, key=lambda name: memoryview(fields[name]).nbytes, default="")
    return longest or None


def check_field_sizes(fields: Mapping[str, Raw], known: tuple[str, ...]) -> None:
    """Raises `RequestError` naming the known field whose JSON is too long."""
    for name in known:
        most = _FIELD_BYTES.get(name, MAX_FIELD_BYTES)
        size = memoryview(fields[name]).nbytes if name in fields and most is not None else 0
        if most is not None and size > most:
            raise invalid_field(name, f"is {size} bytes of JSON, but may have at most {most}")


@dataclass
class JsonShape:
    """Counts of the JSON read so far. `values` and `fields` (of the outermost object) are counted by commas
    and opening brackets, so they may be a little too high."""

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
        quotes[self._find_escaped(data)] = False
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

    def _find_escaped(self, data: NDArray[np.uint8]) -> NDArray[np.intp]:
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
