"""The arguments of a call that a limit or a stop sequence has cut."""

from __future__ import annotations

import json

import msgspec
from msgspec import Raw

_SPACE = " \t\r\n"


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_refuse)


def whole_input(arguments: str) -> Raw:
    """The JSON of an object: the arguments, or those of their members that are complete."""
    try:
        msgspec.json.decode(arguments, type=dict[str, Raw])
    except msgspec.DecodeError:
        pass
    else:
        return Raw(arguments.encode())
    members = _complete_members(arguments)
    return Raw(json.dumps(members, ensure_ascii=False).encode())


def _complete_members(text: str) -> dict[str, object]:
    """A number at the end of the text may lack digits, so it does not count as complete."""
    members: dict[str, object] = {}
    position = _after(text, 0, "{")
    while position is not None:
        try:
            name, position = _decoder.raw_decode(text, _skip(text, position))
            start = _after(text, position, ":")
            if start is None:
                break
            value, position = _decoder.raw_decode(text, _skip(text, start))
        except (ValueError, RecursionError):
            break
        if position == len(text) and type(value) in (int, float):
            break
        members[name] = value
        position = _after(text, position, ",")
    return members


def _skip(text: str, position: int) -> int:
    while text[position : position + 1] in _SPACE and position < len(text):
        position += 1
    return position


def _after(text: str, position: int, character: str) -> int | None:
    """The position after the character, which white space may precede; None if another one is there."""
    position = _skip(text, position)
    return position + 1 if text[position : position + 1] == character else None
