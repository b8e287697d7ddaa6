"""The ways in which model families write tool calls: where calls begin and end, and what they say."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, NoReturn

Dialect = Literal["hermes", "llama_json", "pythonic", "mistral", "mistral_named"]


class Syntax(NamedTuple):
    """Where calls begin and end, for all models of a dialect.

    Any of `tags` begins a body of calls, and so does `bracket` alone at the start of a reply and after calls.
    `closing_tag` may follow a body. `between_tags` stands between two bodies of one call each; None if a
    reply has only one body.
    """

    tags: tuple[str, ...]
    closing_tag: str = ""
    bracket: str = ""
    between_tags: str | None = None


SYNTAXES: dict[Dialect, Syntax] = {
    "hermes": Syntax(("<tool_call>",), closing_tag="</tool_call>", between_tags="\n"),
    "llama_json": Syntax(("<|python_tag|>",), bracket="{"),
    "pythonic": Syntax(("<|python_start|>", "<|python_tag|>"), closing_tag="<|python_end|>", bracket="["),
    "mistral": Syntax(("[TOOL_CALLS]",)),
    "mistral_named": Syntax(("[TOOL_CALLS]",), between_tags=""),
}
_SPACING = re.compile(r"[\s,:]*")
_NAME_BEFORE_OBJECT = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*\w+\s*)?(?:\[ARGS\]\s*)?(?=\{)")
_PYTHON_WORDS = {"true": True, "false": False, "null": None}


class Call(NamedTuple):
    """A call of a tool. `arguments` is the JSON text of an object."""

    name: str
    arguments: str


class BracketScanner:
    """Tracks brackets and strings in text that arrives in pieces.

    Works for JSON and Python literals: brackets inside `quotes` don't count, and backslashes escape.
    """

    def __init__(self, quotes: str = '"') -> None:
        self._quotes = quotes
        self._quote = ""
        self._escaped = False
        self.depth = 0

    @property
    def is_outside(self) -> bool:
        """Whether the next character is in no bracket and in no string."""
        return self.depth == 0 and not self._quote

    @property
    def in_string(self) -> bool:
        return bool(self._quote)

    def closes(self, character: str) -> bool:
        """Reads a character. Returns whether it closes the outermost bracket."""
        if self._escaped:
            self._escaped = False
        elif self._quote:
            self._escaped = character == "\\"
            self._quote = "" if character == self._quote else self._quote
        elif character in self._quotes:
            self._quote = character
        elif character in "{[(":
            self.depth += 1
        elif character in "}])":
            self.depth -= 1
            return self.depth <= 0
        return False


class BodyEnd:
    """Finds the end of the calls that follow a tag, in text that arrives in pieces. Takes linear time.

    In Hermes' dialect a closing tag ends the calls, but strings in the JSON may contain it too. In other
    dialects the bracket that closes the first bracket ends them. Text before the first bracket ends them at
    once, except a name that Mistral's models may write there.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._tag = SYNTAXES[dialect].closing_tag if dialect == "hermes" else ""
        self._matched = 0  # characters of the closing tag that have matched
        self._scanner = BracketScanner("\"'" if dialect == "pythonic" else '"')
        self._may_have_name = dialect in ("mistral", "mistral_named")
        self._opens = SYNTAXES[dialect].bracket or "{["

    def find(self, text: str) -> int | None:
        """The number of characters of `text` before the end; None if the end is not in it."""
        for position, character in enumerate(text):
            if self._tag:
                if self._completes_tag(character):
                    return position + 1
            elif self._scanner.depth or character in self._opens:
                if self._scanner.closes(character):
                    return position + 1
            elif not character.isspace():
                if not self._may_have_name:
                    return position
                self._opens = "{"
        return None

    def _completes_tag(self, character: str) -> bool:
        if self._scanner.in_string:
            self._matched = 0
        elif character == self._tag[self._matched]:
            self._matched += 1
        else:
            self._matched = int(character == self._tag[0])
        self._scanner.closes(character)
        return self._matched == len(self._tag)


def parse_calls(dialect: Dialect, text: str) -> list[Call] | None:
    """The calls that a text up to its end consists of; None for any other text.

    Hermes' closing tag may be missing if the model ended right after the JSON.
    """
    if dialect == "pythonic":
        return _python_calls(text)
    named = _NAME_BEFORE_OBJECT.match(text) if dialect in ("mistral", "mistral_named") else None
    if named is None:
        return _json_calls(text.strip().removesuffix(SYNTAXES[dialect].closing_tag).strip())
    arguments = text[named.end() :].strip()
    return [Call(named[1], arguments)] if parse_object(arguments) is not None else None


def parse_object(text: str) -> dict[str, Any] | None:
    """Parses a JSON object. None for any other text."""
    value = _parse_json(text)
    return value if isinstance(value, dict) else None


def _parse_json(text: str) -> object:
    """Parses a JSON value. None for text that is not valid JSON, such as NaN and Infinity."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _json_calls(text: str) -> list[Call] | None:
    """Parses calls that are written as a JSON object or an array of objects."""
    is_array = isinstance(_parse_json(text), list)
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
    """Parses calls that are written as a Python list: `[f(a=1), g()]`. Arguments must be literals."""
    try:
        expression = ast.parse(text.strip(), mode="eval").body
        if not isinstance(expression, ast.List) or not expression.elts:
            return None
        return [_python_call(element) for element in expression.elts]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


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
