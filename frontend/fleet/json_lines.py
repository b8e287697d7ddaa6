"""Reads files of JSON lines that users give."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TypeVar

import msgspec

from ...runtime.errors import ConfigError
from ...runtime.type_mismatch import TypeMismatch

T = TypeVar("T")
SHOWN_CHARACTERS = 60


def read_json_lines(
    path: Path, option: str, decoder: msgspec.json.Decoder[T], fix: str, limit: int | None = None
) -> Iterator[tuple[str, T]]:
    """Yields the place and the value of each of the first `limit` lines. Raises ConfigError for a file that
    can't be read, and for a line that is not of the decoder's type.

    fix: sentences that end the errors
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"{option} {path}: it can't be read ({error.strerror}). {fix}") from None
    for number, line in enumerate(islice(lines, limit), start=1):
        place = f"{option} {path}, line {number}"
        try:
            value = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise ConfigError(f"{place}: {_explain(error, line)} {fix}") from None
        yield place, value


def _explain(error: msgspec.DecodeError, line: bytes) -> str:
    """A sentence with the wrong field and its value."""
    if not isinstance(error, msgspec.ValidationError):
        return f"{line[:SHOWN_CHARACTERS].decode(errors='replace')} is not JSON ({error})."
    try:
        fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:  # it is JSON, but no object
        fields = {}
    mismatch = TypeMismatch.of(error)
    if mismatch.missing is not None:
        name = f"{mismatch.path}.{mismatch.missing}" if mismatch.path else mismatch.missing
        return f"the field {name} is missing."
    return mismatch.sentence(mismatch.path, fields, "the line")
