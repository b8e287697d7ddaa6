"""Parses the text of tool calls into functions' names and arguments as JSON text."""

from __future__ import annotations

import ast
import json
import re
from typing import Any, NamedTuple, NoReturn

_SPACING = re.compile(r"[\s,:]*")
_PYTHON_WORDS = {"true": True, "false": False, "null": None}


class Call(NamedTuple):
    """`arguments` is the JSON text of an object."""

    name: str
    arguments: str


def json_calls(text: str) -> list[Call] | None:
    """Calls written as one object or an array of them; None for any other text."""
    value = _parsed(text)
    elements = _element_texts(text.strip()) if isinstance(value, list) else [text]
    calls = [call for element in elements if (call := _json_call(element)) is not None]
    return calls if calls and len(calls) == len(elements) else None


def python_calls(text: str) -> list[Call] | None:
    """Calls written as a Python list: `[f(a=1), g()]`. Only literals count as arguments."""
    try:
        expression = ast.parse(text.strip(), mode="eval").body
        if not isinstance(expression, ast.List) or not expression.elts:
            return None
        return [_python_call(element) for element in expression.elts]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def is_json_object(text: str) -> bool:
    return isinstance(_parsed(text), dict)


def _parsed(text: str) -> object:
    """The JSON value; None for text that is not valid JSON, such as NaN and Infinity."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _json_call(text: str) -> Call | None:
    value = _parsed(text)
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    key = "arguments" if "arguments" in value else "parameters"
    match value.get(key, {}):
        case dict() if key in value:
            return Call(value["name"], _member_text(text.strip(), key))
        case dict():
            return Call(value["name"], "{}")
        case str() as encoded if is_json_object(encoded):
            return Call(value["name"], encoded)
    return None


def _member_text(text: str, key: str) -> str:
    """The text of a member's value in a valid object, as the model wrote it."""
    decoder = json.JSONDecoder()
    position, found = 1, ""
    while text[position := _behind_spacing(text, position)] != "}":
        name, position = decoder.raw_decode(text, position)
        start = _behind_spacing(text, position)
        _, position = decoder.raw_decode(text, start)
        if name == key:
            found = text[start:position]
    return found


def _element_texts(text: str) -> list[str]:
    """The text of each element of a valid array."""
    decoder = json.JSONDecoder()
    position = 1
    elements = []
    while text[start := _behind_spacing(text, position)] != "]":
        _, position = decoder.raw_decode(text, start)
        elements.append(text[start:position])
    return elements


def _behind_spacing(text: str, position: int) -> int:
    match = _SPACING.match(text, position)
    assert match is not None  # it also matches the empty text
    return match.end()


def _python_call(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call with keywords only")
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("no name for an argument")
        arguments[keyword.arg] = _literal(keyword.value)
    return Call(ast.unparse(node.func), json.dumps(arguments, ensure_ascii=False, allow_nan=False))


def _literal(node: ast.expr) -> Any:
    """A Python literal; JSON's true, false and null count as literals too."""
    match node:
        case ast.Name(id=word) if word in _PYTHON_WORDS:
            return _PYTHON_WORDS[word]
        case ast.List(elts=elements) | ast.Tuple(elts=elements):
            return [_literal(element) for element in elements]
        case ast.Dict(keys=keys, values=values):
            return {
                str(ast.literal_eval(key)): _literal(value)
                for key, value in zip(keys, values, strict=True)
                if key
            }
        case _:
            return ast.literal_eval(node)
