"""Reads the value out of a reply, as leniently as a person would, and scores it field by field."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from typing import Any

_DECODER = json.JSONDecoder(strict=False)
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")
_NOTHING = {"", "null", "none", "unknown", "n/a", "not given", "missing"}


def read_json(text: str, wanted: Sequence[str]) -> Any:
    """The first object in the text with one of the wanted keys, else the first object or list, else None."""
    found = []
    for match in re.finditer(r"[{\[]", text):
        try:
            value = _DECODER.raw_decode(text, match.start())[0]
        except (ValueError, RecursionError):
            value = _python_literal(text[match.start() :])
        if value is not None:
            found.append(value)
    return next((value for value in found if _has_one(value, wanted)), found[0] if found else None)


def _python_literal(text: str) -> Any:
    """The dictionary or list with which the text begins, in Python's spelling; None if there is none."""
    closing = {"{": "}", "[": "]"}[text[0]]
    for match in list(re.finditer(re.escape(closing), text))[:8]:
        try:
            return ast.literal_eval(text[: match.end()])
        except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            continue
    return None


def _has_one(value: Any, wanted: Sequence[str]) -> bool:
    return isinstance(value, dict) and any(_key(name) in wanted for name in value)


def _key(name: object) -> str:
    return str(name).strip().casefold().replace(" ", "_")


def read_choice(text: str, choices: Sequence[str]) -> str | None:
    """The choice that the text names first; of two at one place the longer."""
    places = []
    for choice in choices:
        match = re.search(rf"\b{re.escape(choice)}\b", text, re.IGNORECASE)
        if match:
            places.append((match.start(), -len(choice), choice))
    return min(places)[2] if places else None


def score(answer: Any, value: Any) -> dict[str, float]:
    """The share that is right of each field of the answer. A list has two: its items and its length."""
    if not isinstance(answer, dict):
        return {"label": float(_is_same(answer, value))}
    found: dict[str, float] = {}
    given = {_key(name): part for name, part in value.items()} if isinstance(value, dict) else {}
    for name, part in answer.items():
        mine = given.get(name)
        if isinstance(part, dict):
            found |= {f"{name}.{inner}": share for inner, share in score(part, mine).items()}
        elif isinstance(part, list):
            items = mine if isinstance(mine, list) else []
            right = sum(any(_is_same(item, other) for other in items) for item in part)
            found[f"{name} items"] = right / len(part)
            found[f"{name} length"] = float(len(items) == len(part))
        else:
            found[name] = float(isinstance(value, dict) and _is_same(part, mine))
    return found


def _is_same(answer: Any, value: Any) -> bool:
    if answer is None:
        return value is None or (isinstance(value, str) and value.strip().casefold() in _NOTHING)
    if isinstance(answer, bool):
        return value is answer or (isinstance(value, str) and value.casefold() in _BOOLEANS[answer])
    if isinstance(answer, int | float):
        return _number(value) == answer
    return isinstance(value, str) and _plain(value) == _plain(answer)


_BOOLEANS = {True: ("true", "yes"), False: ("false", "no")}


def _number(value: Any) -> float | None:
    """The number, also if it is written as a string with one number, such as "12.5 kg"."""
    if isinstance(value, str):
        numbers = _NUMBER.findall(value)
        return float(numbers[0].replace(",", "")) if len(numbers) == 1 else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).strip(" .,;:!\"'`")
