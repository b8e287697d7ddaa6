"""Structural tags in llguidance's way, for what no automaton follows: grammars, and some schemas."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import NotCoveredError
from ..regex import without_anchors
from .compile import merged
from .format import (
    AnyText,
    ConstString,
    Elements,
    Format,
    Grammar,
    JsonSchema,
    Or,
    Regex,
    Tag,
    TagsWithSeparator,
    Thinking,
)

Terms = Callable[[str], list[str]]
"""a literal text in Lark, in which the names of special tokens are those tokens"""
SchemaOf = Callable[[JsonSchema], dict[str, Any]]
"""a schema with llguidance's options"""


def in_lark(format: Format, terms: Terms, schema_of: SchemaOf) -> str:
    """Grammars as JSON. Raises NotCoveredError for text with triggers and for Python's keywords."""
    writer = _Writer(terms, schema_of)
    start = writer.written(format, [])
    rules = [f"start: {start}", *writer.rules]
    return json.dumps({"grammars": [{"lark_grammar": "\n".join(rules)}, *writer.grammars]})


class _Writer:
    """`after`, where it matters, is the fixed text behind a format."""

    def __init__(self, terms: Terms, schema_of: SchemaOf) -> None:
        self._terms = terms
        self._schema_of = schema_of
        self.rules: list[str] = []
        self.grammars: list[dict[str, Any]] = []

    def written(self, format: Format, after: Sequence[str]) -> str:
        match format:
            case ConstString(value):
                return self._literal([value])
            case JsonSchema():
                return self._named({"json_schema": self._schema_of(format)})
            case Grammar(grammar):
                return self._named({"lark_grammar": grammar})
            case Regex(pattern):
                regex = without_anchors(pattern).replace("/", r"\/")
                return self._named({"lark_grammar": f"start: /{regex}/"})
            case Elements(elements):
                return self._sequence(elements, after)
            case Or(elements):
                return self._any_of([self.written(each, after) for each in merged(elements)])
            case Tag():
                return self._tag(format)
            case TagsWithSeparator():
                return self._separated(format)
            case Thinking():
                return self._thinking(format, after)
            case AnyText() if not after:
                return "/(?s:.*)/"
        raise NotCoveredError(type(format).__name__, "the structural tag", "only automata follow it")

    def _sequence(self, elements: Sequence[Format], after: Sequence[str]) -> str:
        written: list[str] = []
        for element in reversed(elements):
            if isinstance(element, AnyText) and after:
                written[:1] = [self._until(after)]
            else:
                written.insert(0, self.written(element, after))
            after = [element.value] if isinstance(element, ConstString) else []
        return " ".join(written)

    def _until(self, ends: Sequence[str]) -> str:
        """Any text up to the first of these, and that."""
        found = []
        for end in ends:
            first, *rest = self._terms(end)
            if first.startswith("<"):
                found.append(" ".join(["/(?s:.*)/", first, *rest]))
                continue
            rule = f"until_{len(self.rules)}"
            self.rules.append(f"{rule}[suffix={first}]: /(?s:.*)/")
            found.append(" ".join([rule, *rest]))
        return self._any_of(found)

    def _tag(self, tag: Tag) -> str:
        begin = self._literal([tag.begin])
        if isinstance(tag.content, AnyText):
            return f"{begin} {self._until(tag.ends)}"
        return f"{begin} {self.written(tag.content, [])} {self._literal(tag.ends)}"

    def _separated(self, format: TagsWithSeparator) -> str:
        tags = self._any_of([self._tag(tag) for tag in format.tags])
        more = "" if format.stop_after_first else f" ({self._literal([format.separator])} {tags})*"
        return f"({tags}{more})" + ("" if format.at_least_one else "?")

    def _thinking(self, format: Thinking, after: Sequence[str]) -> str:
        thought = f'{self._until([format.end])} "\\n"{{0,2}}'
        if not format.is_open:
            thought = f"({self._literal([format.start])} {thought})?"
        return f"{thought} {self.written(format.content, after)}"

    def _literal(self, texts: Sequence[str]) -> str:
        return self._any_of([" ".join(self._terms(text)) or '""' for text in texts])

    def _any_of(self, written: Sequence[str]) -> str:
        return written[0] if len(written) == 1 else f"({' | '.join(written)})"

    def _named(self, grammar: dict[str, Any]) -> str:
        name = f"part_{len(self.grammars)}"
        self.grammars.append({"name": name, **grammar})
        return f"@{name}"
