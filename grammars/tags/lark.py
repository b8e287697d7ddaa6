"""Structural tags as Lark grammars for llguidance.

A trigger is a lazy lexeme, which ends the free text around it as soon as the trigger is complete.
llguidance's own `StructTag` writes only tags with one end, in free text: it has no sequences, choices,
thoughts or separators, no tags that must come first or last, and takes every `<...>` for a special token.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import product
from typing import Any

from ..errors import NotCoveredError
from ..regex.pattern import without_anchors
from .alternatives import find_trigger, merge_schemas
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
    Text,
    Thinking,
    TriggeredTags,
)

_TEXT = "/(?s:.+)/"
Terms = Callable[[str], list[str]]
"""returns a literal text as terms of Lark; the name of a special token becomes the token, such as <[7]>"""
ReadSchema = Callable[[JsonSchema], dict[str, Any]]
"""returns a schema with llguidance's options"""


def write_lark(format: Format, terms: Terms, read_schema: ReadSchema, special: Collection[int]) -> str:
    """Writes the format as llguidance's grammars, in JSON. Free text may contain text and the `special`
    tokens.

    Raises NotCoveredError for `Text` and `Members`, and for free text that stops at a special token and also
    at a text, or that never stops.
    """
    writer = _Writer(terms, read_schema, special)
    start = writer.write(format, [])
    rules = [f"start: {start}", *writer.rules]
    return json.dumps({"grammars": [{"lark_grammar": "\n".join(rules)}, *writer.grammars]})


class _Writer:
    """Writes formats as grammars. `after` is the fixed text after a format, if the format needs to know
    it."""

    def __init__(self, terms: Terms, read_schema: ReadSchema, special: Collection[int]) -> None:
        self._terms = terms
        self._schema_of = read_schema
        self._special = frozenset(special)
        self.rules: list[str] = []
        self.grammars: list[dict[str, Any]] = []

    def write(self, format: Format, after: Sequence[str]) -> str:
        match format:
            case ConstString(value):
                return self._literal([value])
            case JsonSchema() if not isinstance(format, Text):
                return self._add_grammar({"json_schema": self._schema_of(format)})
            case Grammar(grammar):
                return self._add_grammar({"lark_grammar": grammar})
            case Regex(pattern):
                regex = without_anchors(pattern).replace("/", r"\/")
                return self._add_grammar({"lark_grammar": f"start: /{regex}/"})
            case Elements(elements):
                return self._sequence(elements, after)
            case Or(elements):
                return self._any_of([self.write(each, after) for each in merge_schemas(elements)])
            case Tag():
                return self._tag(format)
            case TagsWithSeparator():
                return self._write_separated(format)
            case Thinking():
                return self._thinking(format, after)
            case TriggeredTags() if not after:
                return self._write_triggered(format)
            case AnyText() if not after:
                return self._free([])
        raise _not_covered(format)

    def _sequence(self, elements: Sequence[Format], after: Sequence[str]) -> str:
        written: list[str] = []
        for element in reversed(elements):
            if isinstance(element, AnyText) and after:
                written[:1] = [self._until(after)]
            else:
                written.insert(0, self.write(element, after))
            after = [element.value] if isinstance(element, ConstString) else []
        return " ".join(written)

    def _until(self, ends: Sequence[str]) -> str:
        """Free text up to the first occurrence of one of these texts, and that text."""
        free = self._free(ends)
        return self._any_of([f"{free} {self._stop(end)}" for end in ends])

    def _free(self, stops: Sequence[str], not_first: Sequence[str] = ()) -> str:
        """Free text up to a stop. It does not begin with a special token with which a text of `not_first`
        begins."""
        tokens = self._special - self._tokens(stops)
        part = self._rule(_part(tokens))
        if tokens.isdisjoint(early := self._tokens(not_first)):
            return f"{part}*"
        return f"({_part(tokens - early)} {part}*)?"

    def _tokens(self, texts: Sequence[str]) -> set[int]:
        """The special tokens with which these texts begin."""
        return {token for text in texts for token in _tokens_in(self._terms(text)[:1])}

    def _stop(self, text: str) -> str:
        """A text that ends free text as soon as the text is complete."""
        term = self._only_term(text)
        return term if _is_token(term) else self._rule("/(?s:.*)/", f"suffix={term}")

    def _at_start(self, text: str) -> str:
        """A text at the start of free text, which ends as soon as the text without its last spaces is
        complete."""
        known = text.rstrip(" ") or text
        term = self._only_term(known)
        if not _is_token(term):
            term = self._rule(term, "lazy")
        return f"{term} {self._literal([text[len(known) :]])}"

    def _only_term(self, text: str) -> str:
        """The text as one lexeme: a text or a special token. With several lexemes the text would match before
        it is complete."""
        match self._terms(text):
            case [term]:
                return term
        raise _not_covered(AnyText())

    def _write_triggered(self, format: TriggeredTags, thinking: Thinking | None = None) -> str:
        """Tags in free text, which may also begin with `thinking`."""
        begins = [(lead + tag.begin, tag) for tag in format.at_start for lead in format.leads]
        starts = [] if thinking is None else [thinking.start]
        triggered = list(self._by_trigger(format))
        stops = [trigger for trigger, _ in triggered]
        known = [*stops, *starts, *(begin.rstrip(" ") for begin, _ in begins)]
        if _end_together(known, stops) or any(
            isinstance(tag.content, TagsWithSeparator) for tag in format.at_start
        ):
            raise _not_covered(format)
        free = self._rule(self._free(stops, [*starts, *(begin for begin, _ in begins)]))
        found = [f"{self._at_start(begin)} {self._inside(tag)}" for begin, tag in begins]
        found += [f"{free} {self._stop(trigger)} {rest}" for trigger, rest in triggered]
        thoughts = [f"{self._at_start(start)} {self._until([thinking.end])}" for start in starts if thinking]
        return self._write_repeated(format, found, thoughts, free)

    def _write_repeated(
        self, format: TriggeredTags, found: Sequence[str], thoughts: Sequence[str], free: str
    ) -> str:
        first = self._any_of([self._tag(tag) for tag in (*format.tags, *format.at_start)])
        if format.stop_after_first:
            thought = f"({self._any_of(thoughts)})* " if thoughts else ""
            return first if format.at_least_one else f"{thought}{self._any_of([*found, free])}"
        more = f"({self._any_of([*found, *thoughts])})* {free}"
        return f"{first} {more}" if format.at_least_one else more

    def _by_trigger(self, format: TriggeredTags) -> Iterator[tuple[str, str]]:
        """Each trigger that has tags, and the grammar of what may follow the trigger."""
        for trigger in format.triggers:
            tags = [tag for tag in format.tags if find_trigger(tag, format.triggers) == trigger]
            if tags:
                yield trigger, self._any_of([self._rest(tag, trigger) for tag in tags])

    def _rest(self, tag: Tag, trigger: str) -> str:
        first, rest = self._terms(trigger), self._terms(tag.begin.removeprefix(trigger))
        if _tokens_in([*first, *rest]) != _tokens_in(self._terms(tag.begin)):
            raise NotCoveredError("triggers", "the structural tag", "one ends within a special token")
        return " ".join([*rest, self._inside(tag)])

    def _tag(self, tag: Tag) -> str:
        return f"{self._literal([tag.begin])} {self._inside(tag)}"

    def _inside(self, tag: Tag) -> str:
        """The grammar of the text after the tag's beginning."""
        if isinstance(tag.content, AnyText):
            return self._until(tag.ends)
        return f"{self.write(tag.content, [])} {self._literal(tag.ends)}"

    def _write_separated(self, format: TagsWithSeparator) -> str:
        tags = self._any_of([self._tag(tag) for tag in format.tags])
        more = "" if format.stop_after_first else f" ({self._literal([format.separator])} {tags})*"
        return f"({tags}{more})" + ("" if format.at_least_one else "?")

    def _thinking(self, format: Thinking, after: Sequence[str]) -> str:
        if isinstance(format.content, TriggeredTags):
            if not format.is_open:
                return self._write_triggered(format.content, format)
            return f"{self._until([format.end])} {self._write_triggered(format.content)}"
        lines = self._literal([format.then]) if format.then else '"\\n"{0,2}'
        thought = f"{self._until([format.end])} {lines}"
        if not format.is_open:
            thought = f"({self._literal([format.start])} {thought})?"
        return f"{thought} {self._literal([format.begin])} {self.write(format.content, after)}"

    def _literal(self, texts: Sequence[str]) -> str:
        return self._any_of([" ".join(self._terms(text)) or '""' for text in texts])

    def _any_of(self, written: Sequence[str]) -> str:
        return written[0] if len(written) == 1 else f"({' | '.join(written)})"

    def _add_grammar(self, grammar: dict[str, Any]) -> str:
        name = f"part_{len(self.grammars)}"
        self.grammars.append({"name": name, **grammar})
        return f"@{name}"

    def _rule(self, body: str, attribute: str = "") -> str:
        name = f"rule_{len(self.rules)}"
        self.rules.append(f"{name}{f'[{attribute}]' if attribute else ''}: {body}")
        return name


def _part(tokens: Collection[int]) -> str:
    """Lark for one piece of free text: any text without special tokens, or a single one of `tokens`."""
    return f"({_TEXT} | <[{','.join(map(str, sorted(tokens)))}]>)" if tokens else _TEXT


def _end_together(texts: Iterable[str], stops: Iterable[str]) -> bool:
    """Whether a stop may end at the same byte as another text; then only the longer one would count."""
    return any(text != stop and text.endswith(stop) for text, stop in product(texts, stops))


def _is_token(term: str) -> bool:
    return term.startswith("<[")


def _tokens_in(terms: Iterable[str]) -> list[int]:
    return [int(term[2:-2]) for term in terms if _is_token(term)]


def _not_covered(format: Format) -> NotCoveredError:
    return NotCoveredError(type(format).__name__, "the structural tag", "only automata support it")
