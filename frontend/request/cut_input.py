"""The arguments of a call as JSON that every client can read, also if a limit or a stop sequence cut them."""

from __future__ import annotations

import json
import re

import msgspec
from msgspec import Raw

_SPACE = " \t\r\n"
_HIGH, _LOW = r"u[dD][89abAB][0-9a-fA-F]{2}", r"u[dD][c-fC-F][0-9a-fA-F]{2}"
# Pairs and other escapes come before single halves, so that they are passed over whole.
_ESCAPE = re.compile(rf"\\{_HIGH}\\{_LOW}|\\(?P<half>{_HIGH}|{_LOW})|\\.", re.DOTALL)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse)


def whole_input(arguments: str) -> Raw:
    """The JSON of an object: the text of the arguments, or of those of their members that are complete.

    Half of a surrogate pair, which is no character, becomes U+FFFD.
    """
    text = _ESCAPE.sub(lambda found: "\\ufffd" if found["half"] else found[0], arguments)
    try:
        msgspec.json.decode(text, type=dict[str, Raw])
    except msgspec.DecodeError:
        text = _complete_members(text)
    return Raw(text.encode())


def _complete_members(text: str) -> str:
    """A number at the end of the text may lack digits, so it does not count as complete."""
    kept = "{"
    position = _after(text, 0, "{")
    while position is not None:
        try:
            name, position = _decoder.raw_decode(text, _skip(text, position))
            start = _after(text, position, ":")
            if start is None or not isinstance(name, str):
                break
            value, position = _decoder.raw_decode(text, _skip(text, start))
        except (ValueError, RecursionError):
            break
        if position == len(text) and type(value) in (int, float):
            break
        kept = text[:position].lstrip(_SPACE)
        position = _after(text, position, ",")
    return kept + "}"


def _skip(text: str, position: int) -> int:
    while text[position : position + 1] in _SPACE and position < len(text):
        position += 1
    return position


def _after(text: str, position: int, character: str) -> int | None:
    """The position after the character, which white space may precede; None if another one is there."""
    position = _skip(text, position)
    return position + 1 if text[position : position + 1] == character else None
