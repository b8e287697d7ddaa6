"""Which requests llguidance may begin with while their automaton is still being compiled.

What is asked must be the same with both: declared order, nothing left out, no ways out, no free text (in
which automata allow special tokens) and no value within itself for ever (which only our compiler refuses).
"""

from __future__ import annotations

from typing import NamedTuple

from .endless import may_be_endless
from .host import HostCompiler, HostGrammar
from .json_schema import parse_schema
from .source import Source
from .tags.format import (
    ConstString,
    Elements,
    Format,
    JsonSchema,
    Or,
    Regex,
    Tag,
    TagsWithSeparator,
    json_schemas,
    read_format,
)


class HostStart(NamedTuple):
    """llguidance's matcher. `may_begin`: a request may start with it."""

    grammar: HostGrammar
    may_begin: bool


def is_for_host(source: Source) -> bool:
    """Whether llguidance may know all that is asked; whether it covers the grammar is not looked at."""
    match source.kind:
        case "grammar":
            return False
        case "regex" | "choice":
            return not source.closing
        case "structural_tag" if source.unenforced == "allow":
            return False
    return not source.closing and source.property_order == "schema"


def compiled_by_host(source: Source, host: HostCompiler) -> HostStart:
    """Enforces all of the grammar. Raises GrammarError."""
    if source.kind in ("regex", "choice"):
        return HostStart(host.regex(source.regex()), is_for_host(source))
    if source.kind == "structural_tag":
        format = read_format(source.text)
        return HostStart(host.structural_tag(format), is_for_host(source) and _is_alike(format))
    grammar = host.json_schema(source.schema, source.separators)
    return HostStart(grammar, is_for_host(source) and not may_be_endless(parse_schema(source.schema)))


def _is_alike(format: Format) -> bool:
    """Whether llguidance follows it as automata do, with each call that can't be enforced refused."""
    schemas = json_schemas(format)
    if any(schema.otherwise != "refuse" for schema in schemas) or not _has_no_free_text(format):
        return False
    return not any(may_be_endless(parse_schema(bytes(schema.json_schema).decode())) for schema in schemas)


def _has_no_free_text(format: Format) -> bool:
    match format:
        case ConstString() | JsonSchema() | Regex():
            return True
        case Elements(parts) | Or(parts) | TagsWithSeparator(tags=parts):
            return all(map(_has_no_free_text, parts))
        case Tag(content=content):
            return _has_no_free_text(content)
    return False
