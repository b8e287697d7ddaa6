"""The places of values inside JSON."""

from __future__ import annotations

from typing import Any


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside a JSON value."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] * bool(path) + [each for key, inner in pairs for each in paths(inner, (*path, key))]
