"""Reads the JSON files of a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from .errors import ConfigError
from .type_mismatch import TypeMismatch

CONFIG_FILE = "config.json"
GET_IT_AGAIN = "Copy or download it again"

T = TypeVar("T")


def read_config(model: Path, kind: type[T]) -> T:
    """Reads the fields of `model`/config.json that the struct `kind` has. Raises ConfigError."""
    return decode_file(model / CONFIG_FILE, config_text(model), kind)


def config_text(model: Path) -> bytes:
    path = model / CONFIG_FILE
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{path}: can't be read ({error.strerror}). A model directory must contain this file."
        ) from None


def decode_file(path: Path, text: bytes, kind: type[T]) -> T:
    """Decodes the text of the file at `path` as `kind`. Raises ConfigError."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: {_wrong_type(error, text)} {GET_IT_AGAIN}.") from None
    except msgspec.DecodeError as error:
        raise ConfigError(f"{path}: not a whole JSON file ({error}). {GET_IT_AGAIN}.") from None


def convert_part(part: dict[str, Any], kind: type[T]) -> T:
    """Converts one object of a JSON file, such as its `rope_parameters`, to the class `kind`.

    Raises ConfigError. The caller adds the file's path before its text and a full stop after it.
    """
    try:
        return msgspec.convert(part, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(_wrong_type(error, msgspec.json.encode(part)).removesuffix(".")) from None


def _wrong_type(error: msgspec.ValidationError, text: bytes) -> str:
    try:
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:  # the file has no object, or is incomplete
        fields = {}
    mismatch = TypeMismatch.of(error)
    if mismatch.missing is not None:
        name = f"{mismatch.path}.{mismatch.missing}" if mismatch.path else mismatch.missing
        return f"the field {name} is missing."
    return mismatch.sentence(mismatch.path, fields, "the file")
