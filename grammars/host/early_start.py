"""Which requests llguidance may begin with while their automaton is still being compiled.

Both must enforce the same. So properties come in declared order, no keyword goes unenforced, and the reply
need not be completed when its tokens run out. Free text is allowed only where both end it alike, and no
format of which llguidance allows more. A schema whose values contain themselves without end must wait too:
our compiler refuses it and llguidance does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from ...runtime.grammar_spec import GrammarSpec
from ..errors import GrammarError
from ..schema.read.json_text import Json, objects, parse_schema
from ..spec import regex_of, schema_of
from ..tags.format import (
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
    TriggeredTags,
    json_schemas,
    read_format,
)
from .endless import may_be_endless
from .messages import Description

if TYPE_CHECKING:  # the scheduler never loads llguidance
    from .native import HostCompiler, NativeGrammar

LAXER_FORMATS = ("date", "date-time", "time")
"""llguidance knows neither leap years nor when there are leap seconds."""


def may_begin(spec: GrammarSpec) -> bool:
    """Whether a request may start with what llguidance makes of it, if it makes anything."""
    if not is_for_host(spec):
        return False
    try:
        match spec.kind:
            case "regex" | "choice":
                regex_of(spec)
                return True
            case "structural_tag":
                return _is_alike(read_format(spec.text))
        return _has_same_values(parse_schema(schema_of(spec)))
    except GrammarError:  # neither engine reads it
        return False


def is_for_host(spec: GrammarSpec) -> bool:
    """Whether llguidance may know all that is asked; whether it covers the grammar is not looked at."""
    match spec.kind:
        case "grammar":
            return False
        case "regex" | "choice":
            return not spec.closing
        case "structural_tag" if spec.unenforced == "allow":
            return False
    return not spec.closing and spec.property_order == "schema"


def compiled_by_host(spec: GrammarSpec, host: HostCompiler) -> tuple[NativeGrammar, bool]:
    """Enforces all of the grammar, and says whether a request may begin with it. Raises GrammarError."""
    match spec.kind:
        case "regex" | "choice":
            grammar = host.regex(regex_of(spec))
        case "structural_tag":
            grammar = host.structural_tag(read_format(spec.text))
        case _:
            grammar = host.json_schema(schema_of(spec), spec.separators)
    return grammar, may_begin(spec)


def described(spec: GrammarSpec) -> Description:
    """What the scheduler must know of a structural tag, without reading it itself. Raises GrammarError."""
    format = read_format(spec.text)
    schemas = [(schema.function, schema.otherwise) for schema in json_schemas(format)]
    thought = format.content if isinstance(format, Thinking) else None
    return Description(schemas, thought.grammar if isinstance(thought, Grammar) else None)


def thinking_in_lark(spec: GrammarSpec, lark: str) -> Format:
    """A thought and a grammar, as `lark` has that in Lark."""
    format = read_format(spec.text)
    assert isinstance(format, Thinking), "only a thought has a grammar behind it"
    return msgspec.structs.replace(format, content=Grammar(lark))


def _is_alike(format: Format) -> bool:
    """Whether llguidance follows it as automata do."""
    if not _is_read_alike(format, is_last=True):
        return False
    return all(
        _has_same_values(parse_schema(bytes(schema.json_schema).decode())) for schema in json_schemas(format)
    )


def _has_same_values(schema: Json) -> bool:
    """Whether llguidance allows values of the schema only, and has an end to write."""
    formats = [fields.get("format") for _, fields in objects(schema)]
    return not any(name in formats for name in LAXER_FORMATS) and not may_be_endless(schema)


def _is_read_alike(format: Format, *, is_last: bool) -> bool:
    """`is_last`: nothing follows it. Else what does says where free text ends, and that isn't alike."""
    match format:
        case ConstString() | JsonSchema() | Regex() | Grammar():
            return True
        case AnyText():
            return is_last
        case TriggeredTags(tags=tags, at_start=at_start):
            marks = [tag.begin for tag in (*tags, *at_start)]
            alike = all(_is_read_alike(tag, is_last=False) for tag in (*tags, *at_start))
            return is_last and alike and _is_prefix_free(marks)
        case Elements(parts) | Or(parts) | TagsWithSeparator(tags=parts):
            return all(_is_read_alike(part, is_last=False) for part in parts)
        case Tag(content=content):
            return _is_read_alike(content, is_last=False)
        case Thinking(content=content):
            return _is_read_alike(content, is_last=is_last)
    return False


def _is_prefix_free(marks: Iterable[str]) -> bool:
    """Whether no mark begins another one. Of two such marks llguidance reads the longer one alone."""
    return not any(longer.startswith(mark) for mark, longer in pairwise(sorted(set(marks))))
