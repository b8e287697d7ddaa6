"""Finds the known name that a misspelt one may mean."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

CLOSE = 0.8  # the least similarity (1.0: equal). With difflib's default 0.6, "--tp" would mean "--port"
MAX_COMPARED = 40  # characters of a name; comparing longer names takes long


def close_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like `name`, None if none is close. Upper and lower case don't differ."""
    if len(name) > MAX_COMPARED:
        return None
    by_folded = {each.casefold(): each for each in known}
    near = get_close_matches(name.casefold(), list(by_folded), 1, CLOSE)
    return by_folded[near[0]] if near else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The question to put after an error about `name`, empty if no known name is close."""
    near = close_name(name, known)
    return "" if near is None else f" Did you mean {near}?"
