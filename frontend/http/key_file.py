"""Reads a file of API keys, and writes lines for it.

Each line is a key, or a JSON object with a key's name, its SHA-256 hash and its limits. Empty lines and
comments do not count. A comment begins with # at the start of a line or after a space.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path

import msgspec

from ...runtime.api_keys import ApiKey, find_control, key_hash, plain_key
from ...runtime.type_mismatch import TypeMismatch

MAX_PRIORITY = 2**31 - 1
MAX_COUNT = 2**53
FIELDS = (
    "name, key or sha256, requests_per_minute, tokens_per_minute, concurrent_requests, max_tokens, priority, "
    "best_priority"
)
PREFIX = "arbora-"
RANDOM_BYTES = 32
NAME_FORM = "1 to 64 of the characters A-Za-z0-9._@-"
_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_COMMENT = re.compile(r"(^|\s+)#.*")
_UNKNOWN = re.compile("unknown field `(?P<field>[^`]*)`")  # how msgspec's errors name an unknown field
_HASH = re.compile(r"[0-9a-fA-F]{64}")
_COUNTS = ("requests_per_minute", "tokens_per_minute", "concurrent_requests", "max_tokens")
_PRIORITIES = ("priority", "best_priority")
log = logging.getLogger(__name__)


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    """The object of one line; exactly one of `key` and `sha256` is given."""

    name: str
    key: str | None = None
    sha256: str | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None
    max_tokens: int | None = None
    priority: int = 0
    best_priority: int | None = None


_lines = msgspec.json.Decoder(_Line)


def read_key_file(path: Path) -> tuple[ApiKey, ...]:
    """The keys in a file. Logs a warning if other users can read it.

    Raises ValueError with the number of the wrong line.
    """
    try:
        lines = path.read_text("utf-8-sig").split("\n")
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ValueError(f"it can't be read ({reason}). Name a text file with one key a line.") from error
    keys: dict[ApiKey, int] = {}
    for number, text in enumerate(map(str.strip, lines), 1):
        try:
            key = _parse_line(text)
            if key in keys:
                log.warning(
                    "%s: line %d has the key of line %d again: it counts once", path, number, keys[key]
                )
            elif key is not None:
                _check_is_new(key, keys)
                keys[key] = number
        except ValueError as error:
            raise ValueError(f"line {number} {error}") from None
    if not keys:
        raise ValueError("there is no key in it. Write one key a line.")
    if stat.S_IMODE(mode) & 0o077:
        log.warning("other users of this machine may read %s: run `chmod 600 %s`", path, path)
    return tuple(keys)


def _parse_line(text: str) -> ApiKey | None:
    """The key of a line; None for a line without a key. Raises ValueError for a wrong line."""
    if text.startswith("{"):
        return _parse_object(text)
    key = _COMMENT.sub("", text)
    if len(key.split()) > 1:
        raise ValueError("has a space within a key. Write one key a line.")
    if control := find_control(key):
        raise ValueError(f"has {control} in a key, which no HTTP header may have. Remove it.")
    return plain_key(key) if key else None


def _parse_object(text: str) -> ApiKey:
    try:
        line = _lines.decode(text)
    except msgspec.ValidationError as error:
        raise ValueError(_explain(error)) from None
    except msgspec.DecodeError as error:
        raise ValueError(f"is no JSON object: {error}.") from None
    _check_secret(line)
    _check_numbers(line)
    given = {field: getattr(line, field) for field in (*_COUNTS, *_PRIORITIES)}
    digest = line.sha256.lower() if line.sha256 is not None else key_hash(line.key or "")
    return ApiKey(name=line.name, sha256=digest, **given)


def _explain(error: msgspec.ValidationError) -> str:
    """Says what is wrong in a line. No value is shown, because it may be a key."""
    mismatch = TypeMismatch.of(error)
    if found := _UNKNOWN.search(mismatch.message):
        return f"has the unknown field {found['field']}. A key has the fields {FIELDS}."
    if mismatch.missing is not None:
        return f"has no name; write {NAME_FORM}."
    return f"is wrong: {mismatch.sentence(mismatch.path, {}, 'the object')}"


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def _check_secret(line: _Line) -> None:
    if not is_name(line.name):
        raise ValueError(f"has the name {line.name!r}; write {NAME_FORM}.")
    if (line.key is None) == (line.sha256 is None):
        raise ValueError(f"({line.name}) needs either key or sha256; `arbora key {line.name}` makes a line.")
    if line.key is not None and len(line.key.split()) != 1:
        raise ValueError(f"({line.name}) has an empty key, or one with a space.")
    if line.key is not None and (control := find_control(line.key)):
        raise ValueError(f"({line.name}) has {control} in its key, which no HTTP header may have.")
    if line.sha256 is not None and not _HASH.fullmatch(line.sha256):
        raise ValueError(f"({line.name}) has a wrong sha256: it must have 64 digits of 0-9a-f.")


def _check_numbers(line: _Line) -> None:
    for field in _COUNTS:
        number = getattr(line, field)
        if number is not None and not 1 <= number < MAX_COUNT:
            raise ValueError(f"({line.name}): {field} is {number}, but must be 1 or more.")
    for field in _PRIORITIES:
        number = getattr(line, field)
        if number is not None and abs(number) > MAX_PRIORITY:
            raise ValueError(f"({line.name}): {field} is {number}, but must be between ±{MAX_PRIORITY}.")
    if line.best_priority is not None and line.priority < line.best_priority:
        raise ValueError(
            f"({line.name}): priority is {line.priority}, better than best_priority {line.best_priority}, as "
            "lower numbers are better. Raise priority."
        )


def _check_is_new(key: ApiKey, others: Iterable[ApiKey]) -> None:
    for other in others:
        if other.sha256 == key.sha256:
            raise ValueError(f"has the key of {other.name} again. Give each client a key of its own.")
        if other.name == key.name:
            raise ValueError(f"has the name {key.name} again. Give each key a name of its own.")


def check_beside(fixed: Iterable[ApiKey], keys: Iterable[ApiKey]) -> None:
    """Raises ValueError if --api-key gives a key that the file gives with limits."""
    plain = {key.sha256: key for key in fixed}
    for key in keys:
        if plain.get(key.sha256, key) != key:
            raise ValueError(
                f"the key of {key.name} is one of --api-key too, which has no limits: remove it there."
            )


def new_key() -> str:
    return PREFIX + secrets.token_urlsafe(RANDOM_BYTES)


def line_of(name: str, key: str) -> str:
    """The line of a key without limits. It holds only the key's hash, so the file does not reveal the key."""
    return json.dumps({"name": name, "sha256": key_hash(key)})


def as_json(name: str, key: str) -> str:
    """A JSON object with the key, its name and its hash, for programs that make keys."""
    return json.dumps({"key": key, "name": name, "sha256": key_hash(key)})
