"""Reads tool calls whose text is complete: where they end, and what they say."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ..text.reasoning import count_begun
from .call_arguments import BracketScanner, ParameterTypes, flexible, make_reader
from .call_format import PYTHON_WORDS, Form, ToolFormat, parse_json, parse_object

MAX_NAME = 300  # characters before a call's first bracket, after which a text is not a call
_SPACING = re.compile(r"[\s,:]*")
_NAME = r'[^\s<>{}\[\]():=,"|]+'
_UNQUOTED = {mark: re.compile(rf"[^\\{mark}]*+(?:\\.[^\\{mark}]*+)*+", re.DOTALL) for mark in "\"'"}
_PYTHON_VALUES = {"true": True, "false": False, "null": None}
TypesOf = Callable[[str], ParameterTypes]
"""returns the types of a function's parameters"""


class Call(NamedTuple):
    """A call of a tool. `arguments` is the JSON text of an object. `id` is empty if the model wrote none."""

    name: str
    arguments: str
    id: str = ""


class BodyEnd:
    """Finds the end of the calls that follow a tag, in text that arrives in pieces. Takes linear time.

    Where a closing tag ends the calls, strings and parameters may contain it too. In other formats the
    bracket that closes the first bracket ends them, and text before the first bracket ends them at once,
    except a name. Outside of strings and parameters `stop` ends them too, and is not a part of them.
    """

    def __init__(self, format: ToolFormat, stop: str = "") -> None:
        syntax = format.parameters
        is_python = syntax is not None and syntax.quote is None
        self._closing = "" if format.bracket else format.closing_tag
        self._scanner = BracketScanner("\"'" if is_python else '"')
        self._may_have_name = not (format.is_json or is_python)
        self._opens = "{" if self._may_have_name else format.bracket or "{["
        self._before = 0
        self._stop = stop
        self._spans = {'"': '"', "'": "'"} if is_python else {'"': '"'}
        if syntax is not None and syntax.is_raw:
            self._spans = {syntax.name[0].strip(): syntax.end.strip()}
        elif syntax is not None and syntax.quote:
            self._spans = {syntax.quote: syntax.quote}
        marks = [mark for mark in (self._closing, stop, *self._spans) if mark]
        self._outside = re.compile("|".join(map(re.escape, sorted(marks, key=len, reverse=True))))
        self._marks = marks
        self._inside = ""  # the mark that ends the open string or parameter
        self._held = ""

    def find(self, text: str) -> int | None:
        """The number of characters of `text` before the end, which is not in earlier text; None if the end is
        not in it. It is negative if the end has begun in earlier text."""
        return self._find_tag(text) if self._closing else self._find_bracket(text)

    def _find_tag(self, text: str) -> int | None:
        given, position = self._held + text, 0
        while True:
            if self._inside:
                place = _find_end(given, self._inside, position)
                if not given.startswith(self._inside, place):
                    self._held = given[place:]
                    return None
                position, self._inside = place + len(self._inside), ""
                continue
            found = self._outside.search(given, position)
            if found is None:
                self._held = _keep_begun(given[position:], self._marks)
                return None
            if found[0] in self._spans:
                self._inside, position = self._spans[found[0]], found.end()
                continue
            end = found.start() if found[0] == self._stop else found.end()
            return end - len(self._held)

    def _find_bracket(self, text: str) -> int | None:
        for position, character in enumerate(text):
            if self._scanner.depth or character in self._opens:
                if self._scanner.closes(character):
                    return position + 1
            elif not character.isspace():
                self._before += 1
                if not self._may_have_name or self._before > MAX_NAME:
                    return position
        return None


def _find_end(text: str, mark: str, start: int) -> int:
    """The position of the mark that ends a string or parameter, or else of the text that may begin it. A
    quote may be escaped."""
    if len(mark) == 1:
        found = _UNQUOTED[mark].match(text, start)
        return found.end() if found else start
    place = text.find(mark, start)
    return place if place >= 0 else len(text) - len(_keep_begun(text[start:], [mark]))


def _keep_begun(text: str, marks: list[str]) -> str:
    """The end of the text that may begin one of the marks."""
    kept = max(count_begun(text, mark) for mark in marks)
    return text[len(text) - kept :]


def parse_calls(format: ToolFormat, opening: str, text: str, types_of: TypesOf) -> list[Call] | None:
    """The calls that a text up to its end consists of, after `opening`; None for any other text.

    The closing tag may be missing if the model ended right after the arguments.
    """
    if format.is_json:
        return _json_calls(text.strip().removesuffix(format.closing_tag).strip())
    if format.parameters is not None and format.parameters.quote is None:
        return _python_calls(text.strip().removesuffix(format.closing_tag))
    whole = opening.lstrip() + text
    found = (_named_calls(format, form, whole, types_of) for form in format.forms)
    return next(filter(None, found), None)


def _named_calls(format: ToolFormat, form: Form, text: str, types_of: TypesOf) -> list[Call] | None:
    """Calls that begin with a name, in one form. White space may differ."""
    number = format.call_id
    id = rf"(?:{re.escape(number.mark)}(?P<number>{number.pattern}))?" if number else ""
    before, after = form.head
    after_name = r"[^{}]{0,200}?(?=\{)" if format.parameters is None else flexible(after)
    head = re.compile(rf"\s*{flexible(before)}\s*(?P<name>{_NAME}){id}{after_name}")
    opened = re.match(rf"\s*(?:{flexible(form.prefix)})?", text)
    position, calls = opened.end() if opened else 0, list[Call]()
    tail = re.compile(rf"\s*(?:{flexible(form.tail)})?\s*(?:{flexible((form.between or '').strip())})?\s*")
    while (found := head.match(text, position)) is not None:
        arguments, rest = make_reader(format.parameters, types_of(found["name"])).feed(text[found.end() :])
        if rest is None or parse_object(arguments) is None:
            return None
        written = number.id.format(**found.groupdict()) if number and found["number"] else ""
        calls.append(Call(found["name"], arguments, written))
        ended = tail.match(text, len(text) - len(rest))
        position = ended.end() if ended else len(text)
    end = re.compile(rf"(?:{flexible(form.suffix.strip())})?\s*(?:{flexible(format.closing_tag)})?\s*")
    return calls if end.fullmatch(text, position) else None


def _json_calls(text: str) -> list[Call] | None:
    """Parses calls that are written as a JSON object or an array of objects."""
    is_array = isinstance(parse_json(text), list)
    elements = [element for _, element in _members(text)] if is_array else [text]
    calls = [call for element in elements if (call := _json_call(element)) is not None]
    return calls if calls and len(calls) == len(elements) else None


def _json_call(text: str) -> Call | None:
    value = parse_object(text)
    if value is None or not isinstance(value.get("name"), str):
        return None
    key = "arguments" if "arguments" in value else "parameters"
    match value.get(key, {}):
        case dict() if key in value:
            return Call(value["name"], dict(_members(text))[key])
        case dict():
            return Call(value["name"], "{}")
        case str() as encoded if parse_object(encoded) is not None:
            return Call(value["name"], encoded)
    return None


def _members(text: str) -> Iterator[tuple[str, str]]:
    """The name and the text of each member of a valid object, or of each element of a valid array, whose
    elements have no names. The texts are as the model wrote them."""
    decoder = json.JSONDecoder()
    position, name = 1, ""
    while text[start := _skip_spacing(text, position)] not in "}]":
        if text[0] == "{":
            name, position = decoder.raw_decode(text, start)
            start = _skip_spacing(text, position)
        _, position = decoder.raw_decode(text, start)
        yield name, text[start:position]


def _skip_spacing(text: str, position: int) -> int:
    match = _SPACING.match(text, position)
    assert match is not None  # the pattern also matches the empty text
    return match.end()


def _python_calls(text: str) -> list[Call] | None:
    """Parses calls that are written as a Python list, `[f(a=1), g()]`, or one on each line. Arguments must be
    literals."""
    try:
        body = ast.parse(text.strip()).body
        nodes: list[ast.AST] = [each.value if isinstance(each, ast.Expr) else each for each in body]
        if len(nodes) == 1 and isinstance(nodes[0], ast.List):
            nodes = list(nodes[0].elts)
        return [_python_call(node) for node in nodes] or None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _python_call(node: ast.AST) -> Call:
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
        case ast.Name(id=word) if word in PYTHON_WORDS:
            return _PYTHON_VALUES[word]
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
