"""Which requests may start with llguidance while their automaton is still being compiled.

Both engines must enforce the same. So properties come in declared order, every keyword is enforced, and the
reply need not be completed when its tokens run out. Both must end free text alike, and llguidance must not
accept more texts of a format. A schema whose values contain themselves endlessly must wait too: our compiler
refuses it, llguidance does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from ...runtime.grammar_spec import GrammarSpec
from ..errors import GrammarError
from ..regex.of_spec import regex_of
from ..schema.read.json_text import Json, objects, parse_schema
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

if TYPE_CHECKING:  # the scheduler must not load llguidance
    from .native import HostCompiler, NativeGrammar

LAXER_FORMATS = ("date", "date-time", "time")
"""Formats of which llguidance accepts more: it ignores leap years and the times of leap seconds."""


def may_begin(spec: GrammarSpec) -> bool:
    """Whether a request may start with llguidance's matcher, if llguidance can compile it."""
    if not is_for_host(spec):
        return False
    try:
        match spec.kind:
            case "regex" | "choice":
                regex_of(spec)
                return True
            case "structural_tag":
                return _is_alike(read_format(spec.text))
        return _has_same_values(parse_schema(spec.schema))
    except GrammarError:  # neither engine can read it
        return False


def is_for_host(spec: GrammarSpec) -> bool:
    """Whether llguidance has the options that the request asks for; the grammar itself is not read."""
    match spec.kind:
        case "grammar":
            return False
        case "regex" | "choice":
            return not spec.closing
        case "structural_tag" if spec.unenforced == "allow":
            return False
    return not spec.closing and spec.property_order == "schema"


def compiled_by_host(spec: GrammarSpec, host: HostCompiler) -> tuple[NativeGrammar, bool]:
    """llguidance's grammar, and whether a request may start with it. Raises GrammarError."""
    match spec.kind:
        case "regex" | "choice":
            grammar = host.regex(regex_of(spec))
        case "structural_tag":
            grammar = host.structural_tag(read_format(spec.text))
        case _:
            grammar = host.json_schema(spec.schema, spec.separators)
    return grammar, may_begin(spec)


def described(spec: GrammarSpec) -> Description:
    """The facts about a structural tag that the scheduler needs. Raises GrammarError."""
    format = read_format(spec.text)
    schemas = [(schema.function, schema.otherwise) for schema in json_schemas(format)]
    thought = format.content if isinstance(format, Thinking) else None
    return Description(schemas, thought.grammar if isinstance(thought, Grammar) else None)


def thinking_in_lark(spec: GrammarSpec, lark: str) -> Format:
    """The format of a thought and a grammar; `lark` is the grammar in Lark."""
    format = read_format(spec.text)
    assert isinstance(format, Thinking), "only a thought has a grammar behind it"
    return msgspec.structs.replace(format, content=Grammar(lark))


def _is_alike(format: Format) -> bool:
    """Whether llguidance follows the format as automata do."""
    if not _is_read_alike(format, is_last=True):
        return False
    return all(
        _has_same_values(parse_schema(bytes(schema.json_schema).decode())) for schema in json_schemas(format)
    )


def _has_same_values(schema: Json) -> bool:
    """Whether llguidance allows only the schema's values, and every value can end."""
    formats = [fields.get("format") for _, fields in objects(schema)]
    return not any(name in formats for name in LAXER_FORMATS) and not may_be_endless(schema)


def _is_read_alike(format: Format, *, is_last: bool) -> bool:
    """Whether both engines allow the same texts. `is_last`: nothing follows the format.

    Where something follows free text, llguidance and our automata end the free text differently.
    """
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
    """Whether no mark is a prefix of another; of two such marks llguidance reads only the longer one."""
    return not any(longer.startswith(mark) for mark, longer in pairwise(sorted(set(marks))))
