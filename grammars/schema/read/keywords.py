"""The formulas for each keyword of a JSON schema."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from functools import partial, reduce
from itertools import combinations
from operator import or_

from ...errors import TooLargeError
from ..lexical.formats import FORMATS, HINTS
from .array_keywords import ARRAYS
from .declared import forbid_undeclared
from .document import Reader, Readers, Reading, SchemaDocument
from .formula import (
    ARRAY,
    BOOLEAN,
    EVERY_TYPE,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    AtLeast,
    Atom,
    Fact,
    Format,
    Formula,
    Has,
    Integer,
    Members,
    MinItems,
    MinLength,
    MinMembers,
    MoreThan,
    MultipleOf,
)
from .formulas import Formulas
from .json_text import Json, list_texts
from .object_keywords import DEPENDENCIES, OBJECTS
from .place import Fields, Place
from .references import is_uri
from .same_value import find_beside
from .values import exact_number, is_listed, is_number, one_of_values

TYPES = {
    "null": NULL,
    "boolean": BOOLEAN,
    "number": NUMBER,
    "integer": NUMBER,
    "string": STRING,
    "object": OBJECT,
    "array": ARRAY,
}
MAX_OVERLAPS = 200
_WHOLE_LENGTH = re.compile(r"\^\(\?=\.\{\d+,\d+\}(?:\\\.\?)?\$\)")
"""a look-ahead that only counts characters, such as `^(?=.{1,253}\.?$)`"""


def _type(document: SchemaDocument, place: Place) -> Iterator[Formula]:
    names = _list_types(place.fields)
    for name in names:
        if not isinstance(name, str) or name not in TYPES:
            raise place.mistake("type", f"{name!r} is no type; the types are {', '.join(TYPES)}")
    yield document.formulas.types(_mask_of(names))
    if "integer" in names and "number" not in names:
        yield document.formulas.atom(Integer())


def _enum(document: SchemaDocument, place: Place) -> Iterator[Formula]:
    yield one_of_values(document.formulas, place.get_list("enum"))


def _const(document: SchemaDocument, place: Place) -> Iterator[Formula]:
    yield one_of_values(document.formulas, [place.fields["const"]])


def _least(
    keyword: str, at_least: Callable[[int], Fact], document: SchemaDocument, place: Place
) -> Iterator[Formula]:
    count = place.get_count(keyword)
    if count:
        yield document.formulas.atom(at_least(count))


def _most(
    keyword: str, at_least: Callable[[int], Fact], document: SchemaDocument, place: Place
) -> Iterator[Formula]:
    yield document.unless(at_least(place.get_count(keyword) + 1))


def _min_length(document: SchemaDocument, place: Place) -> Iterator[Formula]:
    document.note_length(place.get_count("minLength"), place, "minLength")
    yield from _least("minLength", MinLength, document, place)


def _max_length(document: SchemaDocument, place: Place) -> Iterator[Formula]:
    document.note_length(place.get_count("maxLength") + 1, place, "maxLength")
    yield from _most("maxLength", MinLength, document, place)


def _pattern(document: SchemaDocument, place: Place) -> Iterator[Formula]:
    """zod repeats the format hostname as a pattern that also bounds the length of the whole name. Like the
    format, it then bounds that of each label only: an automaton with both bounds would be too large."""
    pattern = place.fields["pattern"]
    if place.fields.get("format") == "hostname" and isinstance(pattern, str) and not document.is_strict:
        pattern = _WHOLE_LENGTH.sub("^", pattern, 1)
    yield document.pattern(place, "pattern", pattern)


def _format(document: SchemaDocument, place: Place) -> Iterator[Formula]:
    name = place.fields["format"]
    if not isinstance(name, str):
        raise place.mistake("format", "it must be a string")
    if name in HINTS:
        return
    if name not in FORMATS:
        if "string" not in _list_types(place.fields):
            return
        return document.leave_out_format(place, name)
    yield document.formulas.atom(Format(name))


def _bound(place: Place, keyword: str) -> Fraction:
    value = place.fields[keyword]
    if not is_number(value):
        raise place.mistake(keyword, "it must be a number")
    return exact_number(value)


def _minimum(document: SchemaDocument, place: Place) -> Iterator[Formula]:
    kind = MoreThan if place.fields.get("exclusiveMinimum") is True else AtLeast
    yield document.formulas.atom(kind(_bound(place, "minimum")))


def _maximum(document: SchemaDocument, place: Place) -> Iterator[Formula]:
    kind = AtLeast if place.fields.get("exclusiveMaximum") is True else MoreThan
    yield document.unless(kind(_bound(place, "maximum")))


def _exclusive_minimum(document: SchemaDocument, place: Place) -> Iterator[Formula]:
    if not isinstance(place.fields["exclusiveMinimum"], bool):
        yield document.formulas.atom(MoreThan(_bound(place, "exclusiveMinimum")))


def _exclusive_maximum(document: SchemaDocument, place: Place) -> Iterator[Formula]:
    if not isinstance(place.fields["exclusiveMaximum"], bool):
        yield document.unless(AtLeast(_bound(place, "exclusiveMaximum")))


def _multiple_of(document: SchemaDocument, place: Place) -> Iterator[Formula]:
    divisor = _bound(place, "multipleOf")
    if divisor <= 0:
        raise place.mistake("multipleOf", "it must be more than 0")
    yield document.formulas.atom(MultipleOf(divisor))


def _all_of(document: SchemaDocument, place: Place) -> Iterator[Formula]:
    yield from document.children(place, "allOf")


def _any_of(document: SchemaDocument, place: Place) -> Iterator[Formula]:
    yield document.formulas.any_of(document.children(place, "anyOf"))


def _one_of(document: SchemaDocument, place: Place) -> Iterator[Formula]:
    """At least one alternative holds, and no two do. Disjoint alternatives need no formula for the latter."""
    make = document.formulas
    outer = make.types(_mask_of(_list_types(place.fields)))
    required = [make.atom(Has(name)) for name in list_texts(place.fields.get("required"))]
    children = [make.all_of([outer, document.expand(child)]) for child in document.children(place, "oneOf")]
    yield make.any_of(children)
    written = document.children(place.as_written(), "oneOf")
    children = [make.all_of([outer, document.expand(child)]) for child in written]
    overlaps: dict[Formula, None] = {}
    for left, right in combinations(children, 2):
        both = make.all_of([left, right])
        if _exclude_each_other(document, make.all_of([make.restrict(both, OBJECT), *required])):
            both = make.all_of([make.types(EVERY_TYPE & ~OBJECT), both])
        overlaps[both] = None
        if len(overlaps) > MAX_OVERLAPS:
            raise TooLargeError(f"more than {MAX_OVERLAPS} pairs of oneOf that may overlap")
    yield from map(make.negation, overlaps)


def _list_types(fields: Fields) -> list[Json]:
    """The names of the types that a subschema allows, which may be wrong."""
    listed = fields.get("type", [*TYPES])
    return listed if isinstance(listed, list) else [listed]


def _mask_of(names: Iterable[Json]) -> int:
    return reduce(or_, (TYPES[str(name)] for name in names), 0)


def _exclude_each_other(document: SchemaDocument, both: Formula) -> bool:
    """Whether both require a property for which no value satisfies both."""
    make = document.formulas
    facts = [part.fact for part in both.conjuncts() if isinstance(part, Atom)]
    required = [fact.name for fact in facts if isinstance(fact, Has)]
    allowed: dict[str, list[Formula]] = {}
    for fact in facts:
        if isinstance(fact, Members):
            for name in required:
                if is_listed(make, name, fact.names):
                    allowed.setdefault(name, []).append(fact.child)
    return any(
        make.false in values or (len(values) > 1 and make.all_of(map(document.expand, values)) is make.false)
        for values in allowed.values()
    )


def _not(document: SchemaDocument, place: Place) -> Iterator[Formula]:
    yield document.formulas.negation(document.child(place, "not"))


def _if(document: SchemaDocument, place: Place) -> Iterator[Formula]:
    make = document.formulas
    condition = document.child(place, "if")
    if "then" in place.fields:
        yield make.any_of([make.negation(condition), document.child(place, "then")])
    if "else" in place.fields:
        yield make.any_of([condition, document.child(place, "else")])


def _identifier(document: SchemaDocument, place: Place) -> Iterator[Formula]:
    identifier = place.fields["$id"]
    if not isinstance(identifier, str) or not is_uri(identifier):
        raise place.mistake("$id", "it is not a URI")
    yield document.formulas.true


def _follow(keyword: str, document: SchemaDocument, place: Place) -> Iterator[Formula]:
    yield document.refer(place, keyword)


_KEYWORDS: dict[str, Reader] = {
    **OBJECTS,  # read first, because they determine the order of properties
    **ARRAYS,
    "$ref": partial(_follow, "$ref"),
    "$id": _identifier,
    "$dynamicRef": partial(_follow, "$dynamicRef"),
    "$recursiveRef": partial(_follow, "$recursiveRef"),
    "type": _type,
    "enum": _enum,
    "const": _const,
    "minLength": _min_length,
    "maxLength": _max_length,
    "pattern": _pattern,
    "format": _format,
    "minimum": _minimum,
    "maximum": _maximum,
    "exclusiveMinimum": _exclusive_minimum,
    "exclusiveMaximum": _exclusive_maximum,
    "multipleOf": _multiple_of,
    "minItems": partial(_least, "minItems", MinItems),
    "maxItems": partial(_most, "maxItems", MinItems),
    "minProperties": partial(_least, "minProperties", MinMembers),
    "maxProperties": partial(_most, "maxProperties", MinMembers),
    **DEPENDENCIES,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "if": _if,
}


_READERS = Readers(_KEYWORDS, forbid_undeclared, find_beside)


def read_document(root: Json, formulas: Formulas, reading: Reading) -> SchemaDocument:
    return SchemaDocument(root, formulas, _READERS, reading)
