"""Compiles the formats of a structural tag to one stack automaton."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import NamedTuple, TypeAlias

from msgspec import structs

from ...runtime.grammar_spec import GrammarSpec
from ..errors import GrammarError, NotCoveredError, NoValueError, TooLargeError, WrongKeywordError
from ..machine.stack_automaton import StackAutomaton
from ..regex.byte_automaton import compile_regex
from ..regex.pattern import without_anchors
from ..schema.compile import CompiledSchema, SchemaCompiler
from ..schema.read.document import Reading, SchemaDocument
from ..schema.read.formula import formulas_in
from ..schema.read.formulas import Formulas
from ..schema.read.keywords import read_document
from .alternatives import find_trigger, merge_schemas
from .format import (
    AnyText,
    ConstString,
    Elements,
    Format,
    Grammar,
    JsonSchema,
    Members,
    Or,
    Regex,
    Tag,
    TagsWithSeparator,
    Text,
    Thinking,
    TriggeredTags,
    read_format,
)
from .free_text import Pattern, free_text
from .linker import AmbiguousError, Linker
from .plain_text import read_plain_text

BytesOf = Callable[[str], bytes]
"""returns the bytes of a text; the name of a special token becomes the bytes of the token"""
CompileSchema = Callable[[str, tuple[str, str] | None, bool], CompiledSchema]
"""compiles a schema, given its text, its own separators and whether whole values are checked later"""
_Made: TypeAlias = CompiledSchema | GrammarError | TooLargeError
_INSTEAD = {"object": '{"type":"object"}', "value": "true"}


class TagCompiler:
    """Compiles structural tags, whose schemas share the automata of strings and numbers."""

    def __init__(self, schemas: SchemaCompiler) -> None:
        self._schemas = schemas

    def compile(self, spec: GrammarSpec, bytes_of: BytesOf) -> CompiledSchema:
        """Compiles a structural tag. The spec's white space is for JSON without separators of its own.
        Raises GrammarError for a wrong or ambiguous format, otherwise as `SchemaCompiler.compile`.

        The path of a keyword that is left out begins with the name of the function whose parameters have it.
        If anything other than formats is left out of a function's parameters, its whole call is checked
        later.
        """

        def compile_schema(text: str, separators: tuple[str, str] | None, is_checked: bool) -> CompiledSchema:
            whitespace = separators or spec.whitespace
            schema = structs.replace(spec, kind="json_schema", text=text, whitespace=whitespace)
            return self._schemas.compile(schema, is_checked=is_checked)

        def build(format: Format) -> CompiledSchema:
            refuses = spec.unenforced == "refuse"
            return _Builder(compile_schema, bytes_of, refuses_left_out=refuses).build(format)

        format = read_format(spec.text)
        try:
            return build(format)
        except AmbiguousError:
            if not isinstance(format, Thinking) or format.is_open:
                raise
            return build(format.content)


class _Place(NamedTuple):
    """A position in the text. `texts`: the fixed texts with which all continuations begin, and the state
    after each; None if a continuation begins otherwise. `may_end`: whether the text may end here."""

    state: int
    texts: tuple[tuple[bytes, int], ...] | None = None
    may_end: bool = False


class _Builder:
    """Makes states from the last to the first, because a state refers to the next ones."""

    def __init__(
        self, compile_schema: CompileSchema, bytes_of: BytesOf, *, refuses_left_out: bool = False
    ) -> None:
        self._refuses_left_out = refuses_left_out
        self._compile_schema = compile_schema
        self._bytes_of = bytes_of
        self._linker = Linker()
        self._machines: dict[tuple[bytes, tuple[str, str] | None, bool], _Made] = {}
        self._copies: dict[tuple[int, int], int] = {}
        self._left_out: dict[tuple[str, str], None] = {}

    def build(self, format: Format) -> CompiledSchema:
        end = _Place(self._linker.end, (), may_end=True)
        start = self._place(format, end)
        return CompiledSchema(self._linker.link(start.state), tuple(self._left_out))

    def _place(self, format: Format, after: _Place) -> _Place:
        match format:
            case ConstString(value):
                return self._text(self._bytes_of(value), after)
            case Text():
                return self._string(format, after)
            case JsonSchema():
                return self._copy(self._json(format), after)
            case Members():
                return self._members(format, after)
            case Regex(pattern):
                return self._copy(compile_regex(without_anchors(pattern)), after)
            case Grammar():
                raise NotCoveredError("grammar", "the structural tag", "it has no automaton")
            case AnyText():
                return self._free([], after)
            case Elements(elements):
                for element in reversed(elements):
                    after = self._place(element, after)
                return after
            case Or(elements):
                return self._any_of(self._place(element, after) for element in merge_schemas(elements))
            case Tag():
                return self._tag(format, self._bytes_of(format.begin), after)
            case TriggeredTags():
                return self._add_triggered(format, after, None)
            case TagsWithSeparator():
                return self._add_separated(format, after)
            case Thinking():
                return self._thinking(format, after)

    def _text(self, text: bytes, after: _Place) -> _Place:
        if not text:
            return after
        return _Place(self._linker.text(text, after.state), ((text, after.state),))

    def _any_of(self, places: Iterable[_Place]) -> _Place:
        found = list(places)
        texts = [place.texts for place in found]
        known = [text for each in texts if each is not None for text in each]
        return _Place(
            self._linker.fork(place.state for place in found),
            None if None in texts else tuple(dict.fromkeys(known)),
            any(place.may_end for place in found),
        )

    def _copy(self, machine: StackAutomaton, after: _Place) -> _Place:
        key = (id(machine), after.state)
        if key not in self._copies:
            ends = dict.fromkeys(machine.accepting.nonzero()[0].tolist(), after.state)
            self._copies[key] = self._linker.add(machine, ends)
        return _Place(self._copies[key])

    def _free(self, found: Sequence[tuple[Pattern, int]], after: _Place) -> _Place:
        """Free text up to one of the patterns, or up to the fixed text that comes after it."""
        if after.texts is None:
            raise GrammarError("after any text must come a fixed text or the end")
        both = [*found, *((Pattern(text), state) for text, state in after.texts)]
        free = free_text([pattern for pattern, _ in both], may_end=after.may_end)
        following = {place: state for place, (_, state) in zip(free.found, both, strict=True)}
        return _Place(self._linker.add(free.machine, following))

    def _tag(self, tag: Tag, begin: bytes, after: _Place) -> _Place:
        ends = self._any_of(self._text(self._bytes_of(end), after) for end in tag.ends)
        return self._text(begin, self._place(tag.content, ends))

    def _add_triggered(self, format: TriggeredTags, after: _Place, thinking: Thinking | None) -> _Place:
        """Tags in free text, which may also begin with `thinking`."""
        again = self._hole()
        following = after if format.stop_after_first else again
        found = [
            self._start_pattern(self._bytes_of(lead + begin), state)
            for tag in format.at_start
            for begin, state in self._entries(tag, following)
            for lead in format.leads
        ]
        for trigger in format.triggers:
            tags = [tag for tag in format.tags if find_trigger(tag, format.triggers) == trigger]
            if tags:
                rests = [self._tag(tag, self._after_trigger(trigger, tag), following) for tag in tags]
                found.append((Pattern(self._bytes_of(trigger)), self._any_of(rests).state))
        if thinking is not None:
            thought = self._add_thought(thinking, again)
            found.append((Pattern(self._bytes_of(thinking.start), at_start=True), thought.state))
        self._linker.fill(again.state, self._free(found, after).state)
        if not format.at_least_one:
            return again
        firsts = [*format.tags, *format.at_start]
        return self._any_of(self._tag(tag, self._bytes_of(tag.begin), following) for tag in firsts)

    def _start_pattern(self, begin: bytes, following: int) -> tuple[Pattern, int]:
        """A pattern at the start, without its last spaces. Most tokens begin with a space; with the spaces,
        the mask would differ from those of all other positions in all these tokens."""
        known = begin.rstrip(b" ") or begin
        return Pattern(known, at_start=True), self._linker.text(begin[len(known) :], following)

    def _entries(self, tag: Tag, following: _Place) -> list[tuple[str, int]]:
        """The beginnings that identify a tag, and the state after each."""
        if not isinstance(tag.content, TagsWithSeparator):
            return [(tag.begin, self._tag(tag, b"", following).state)]
        ends = self._any_of(self._text(self._bytes_of(end), following) for end in tag.ends)
        inside, _ = self._series(tag.content, ends)
        return [(tag.begin + each.begin, self._tag(each, b"", inside).state) for each in tag.content.tags]

    def _after_trigger(self, trigger: str, tag: Tag) -> bytes:
        """The part of the tag's beginning that follows its trigger."""
        begin, first = self._bytes_of(tag.begin), self._bytes_of(trigger)
        if not begin.startswith(first):
            raise GrammarError(f"the trigger {trigger!r} ends within a special token of {tag.begin!r}")
        return begin[len(first) :]

    def _add_separated(self, format: TagsWithSeparator, after: _Place) -> _Place:
        _, first = self._series(format, after)
        return first if format.at_least_one else self._any_of([first, after])

    def _series(self, format: TagsWithSeparator, after: _Place) -> tuple[_Place, _Place]:
        """The position after a tag of the series, and the position before the first tag."""
        following = after if format.stop_after_first else self._hole()
        first = self._any_of(self._tag(tag, self._bytes_of(tag.begin), following) for tag in format.tags)
        if not format.stop_after_first:
            more = self._text(self._bytes_of(format.separator), first)
            self._linker.fill(following.state, self._linker.fork([after.state, more.state]))
        return following, first

    def _members(self, format: Members, after: _Place) -> _Place:
        first, further = after, after
        for member in reversed(format.members):
            ended = self._text(self._bytes_of(member.end), further)
            begun = self._text(self._bytes_of(member.begin), self._place(member.content, ended))
            separated = self._text(self._bytes_of(format.separator), begun)
            first = begun if member.required else self._any_of([begun, first])
            further = separated if member.required else self._any_of([separated, further])
        return first

    def _string(self, format: Text, after: _Place) -> _Place:
        text = bytes(format.json_schema).decode()
        if (mistake := _first_mistake(text)) is not None:
            raise _name_function(mistake, format)
        try:
            allowed = read_plain_text(json.loads(text))
        except GrammarError as error:
            raise _name_function(error, format) from None
        for keyword in allowed.left_out:
            if self._refuses_left_out:
                raise _name_function(NotCoveredError(keyword, "#", "the text has no quotes"), format)
            self._left_out[keyword, format.named(f"#/{keyword}")] = None
        if allowed.texts is not None:
            return self._any_of(self._text(each.encode(), after) for each in allowed.texts)
        return (
            self._free([], after)
            if allowed.regex is None
            else self._copy(compile_regex(allowed.regex), after)
        )

    def _thinking(self, format: Thinking, after: _Place) -> _Place:
        if isinstance(format.content, TriggeredTags) and not format.is_open:
            return self._add_triggered(format.content, after, format)
        content = self._text(self._bytes_of(format.begin), self._place(format.content, after))
        thought = self._add_thought(format, content)
        if format.is_open:
            return thought
        return self._any_of([self._text(self._bytes_of(format.start), thought), content])

    def _add_thought(self, format: Thinking, content: _Place) -> _Place:
        """A thought up to its end, and the line breaks that models write after it."""
        if not isinstance(format.content, TriggeredTags):
            content = self._text(self._bytes_of(format.then), content)
            breaks = [self._text(b"\n" * count, content) for count in range(3)]
            content = content if format.then else self._any_of(breaks)
        return self._free([], self._text(self._bytes_of(format.end), content))

    def _hole(self) -> _Place:
        return _Place(self._linker.hole())

    def _json(self, format: JsonSchema) -> StackAutomaton:
        made = self._machine(bytes(format.json_schema), format.separators, is_checked=bool(format.function))
        if isinstance(made, CompiledSchema):
            self._left_out |= {(keyword, format.named(path)): None for keyword, path in made.left_out}
            return made.machine
        if format.otherwise == "refuse" or not _is_meaningful(made):
            raise _name_function(made, format)
        self._left_out["parameters", format.named("#")] = None
        return self._compile_schema(_INSTEAD[format.otherwise], format.separators, False).machine

    def _machine(self, schema: bytes, separators: tuple[str, str] | None, *, is_checked: bool) -> _Made:
        key = (schema, separators, is_checked)
        if key not in self._machines:
            try:
                made: _Made = self._compile_schema(schema.decode(), separators, is_checked)
            except (GrammarError, TooLargeError) as error:
                made = _first_mistake(schema.decode()) or error
            self._machines[key] = made
        return self._machines[key]


def _is_meaningful(error: GrammarError | TooLargeError) -> bool:
    """Whether a schema is meaningful although it has no automaton."""
    is_uncovered = isinstance(error, NotCoveredError | NoValueError | TooLargeError)
    return is_uncovered and not isinstance(error, WrongKeywordError)


def _name_function(error: GrammarError | TooLargeError, format: JsonSchema) -> GrammarError | TooLargeError:
    if not format.function:
        return error
    parameters = f"the parameters of the function {format.function!r}"
    named: GrammarError | TooLargeError
    if isinstance(error, TooLargeError):
        named = TooLargeError(f"{parameters}: {error}")
    elif isinstance(error, NotCoveredError):
        place = f"{format.place(error.path)} of the function {format.function!r}"
        named = type(error)(error.keyword, place, error.reason)
    else:
        where = "which must allow an object" if format.root == "#" else f"at {format.root}"
        named = type(error)(f"{parameters}, {where}: {error}")
    named.function = format.function
    return named


def _first_mistake(text: str) -> GrammarError | None:
    """The error of the first keyword with a meaningless value in any subschema, or the error of a schema that
    obviously allows no value."""
    formulas = Formulas()
    try:
        root = json.loads(text, parse_float=Decimal)
        document = read_document(root, formulas, Reading(unenforced="allow"))
        _read_all(document)
        if document.expand(document.whole) is formulas.false:
            return GrammarError("the schema allows no value")
    except GrammarError as error:
        return error
    except (TooLargeError, RecursionError):
        return None
    finally:
        formulas.dissolve()
    return None


def _read_all(document: SchemaDocument) -> None:
    """Reads every subschema once."""
    seen = {document.whole}
    pending = [document.whole]
    while pending:
        for atom in document.expand(pending.pop()).atoms():
            found = set(formulas_in(atom.fact)) - seen
            seen |= found
            pending += found
