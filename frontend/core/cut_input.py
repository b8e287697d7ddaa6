"""The arguments of a call as JSON that every client can read, also if a limit or a stop sequence cut them."""

from __future__ import annotations

import json
import re

import msgspec
from msgspec import Raw

_SPACE = " \t\r\n"
_HIGH, _LOW = r"u[dD][89abAB][0-9a-fA-F]{2}", r"u[dD][c-fC-F][0-9a-fA-F]{2}"
# Surrogate pairs and other escapes come before single halves, so that they match as a whole.
_ESCAPE = re.compile(rf"\\{_HIGH}\\{_LOW}|\\(?P<half>{_HIGH}|{_LOW})|\\.", re.DOTALL)
_COMPLETE = re.compile(r"(?:[^\\]|\\u[0-9a-fA-F]{4}|\\[^u])*", re.DOTALL)
_LAST_HIGH = re.compile(rf"\\{_HIGH}$")
_MAX_HELD = len(r"\ud83d\ude0")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse)


def whole_input(arguments: str) -> Raw:
    """The JSON of an object: the text of the arguments, or of those of their members that are complete.

    Half of a surrogate pair, which is no character, becomes U+FFFD.
    """
    text = _without_halves(arguments)
    try:
        msgspec.json.decode(text, type=dict[str, Raw])
    except msgspec.DecodeError:
        text = _complete_members(text)
    return Raw(text.encode())


class InputFragments:
    """The JSON of one object that comes in fragments, with U+FFFD for half of a surrogate pair."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, fragment: str) -> str:
        """Returns the text so far, without an escape at its end that the next fragment may complete."""
        text = self._held + fragment
        end = len(text)
        if "\\" in text:
            complete = _COMPLETE.match(text)
            assert complete is not None, "the pattern matches the empty text"
            end = complete.end()
            if (high := _LAST_HIGH.search(complete[0])) is not None:
                end = high.start()
            if len(text) - end > _MAX_HELD:  # the held text is too long for a JSON escape
                end = len(text)
        self._held = text[end:]
        return _without_halves(text[:end])

    def end(self) -> str:
        """Returns the held rest of the text."""
        text, self._held = self._held, ""
        return _without_halves(text)


def _without_halves(text: str) -> str:
    return _ESCAPE.sub(lambda found: "\\ufffd" if found["half"] else found[0], text)


def _complete_members(text: str) -> str:
    """The complete members of a cut object. A number at the end may lack digits, so it is left out."""
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
