"""What each keyword of a JSON schema says, as formulas. `READERS` has them in the order of reading."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, TypeAlias

from ..errors import TooLargeError
from .array_readers import ARRAYS
from .formats import FORMATS, HINTS
from .formula import ARRAY, BOOLEAN, EVERY_TYPE, NULL, NUMBER, OBJECT, STRING, Formula
from .object_readers import DEPENDENCIES, OBJECTS
from .one_sided import OneSidedError
from .place import Fields, Place
from .references import is_uri
from .values import exact_number, is_listed, is_number, one_of_values

if TYPE_CHECKING:
    from .keywords import Keywords

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
Reader: TypeAlias = "Callable[[Keywords, Place], Iterator[Formula]]"


def _type(keywords: Keywords, place: Place) -> Iterator[Formula]:
    listed = place.fields["type"]
    names = listed if isinstance(listed, list) else [listed]
    mask = 0
    for name in names:
        if not isinstance(name, str) or name not in TYPES:
            raise place.mistake("type", f"{name!r} is not a type")
        mask |= TYPES[name]
    yield keywords.formulas.types(mask)
    if "integer" in names and "number" not in names:
        yield keywords.formulas.atom(NUMBER, "integer")


def _enum(keywords: Keywords, place: Place) -> Iterator[Formula]:
    yield one_of_values(keywords.formulas, place.listed("enum"))


def _const(keywords: Keywords, place: Place) -> Iterator[Formula]:
    yield one_of_values(keywords.formulas, [place.fields["const"]])


def _least(keyword: str, types: int, name: str, keywords: Keywords, place: Place) -> Iterator[Formula]:
    count = place.count(keyword)
    if count:
        yield keywords.formulas.atom(types, name, count)


def _most(keyword: str, types: int, name: str, keywords: Keywords, place: Place) -> Iterator[Formula]:
    yield keywords.unless(keywords.formulas.atom(types, name, place.count(keyword) + 1))


def _pattern(keywords: Keywords, place: Place) -> Iterator[Formula]:
    yield keywords.pattern(place, "pattern", place.fields["pattern"])


def _format(keywords: Keywords, place: Place) -> Iterator[Formula]:
    name = place.fields["format"]
    if not isinstance(name, str):
        raise place.mistake("format", "it must be a string")
    if name in HINTS:
        return
    if name not in FORMATS:
        types = place.fields.get("type", "string")
        if "string" not in (types if isinstance(types, list) else [types]):
            return
        return keywords.leave_out_format(place, name)
    if name in keywords.without_formats:
        raise place.refusal("format", str(OneSidedError(name)))
    keywords.paths_of_format.setdefault(name, []).append(f"{place.path}/format")
    yield keywords.formulas.atom(STRING, "format", name)


def _bound(place: Place, keyword: str) -> Fraction:
    value = place.fields[keyword]
    if not is_number(value):
        raise place.mistake(keyword, "it must be a number")
    return exact_number(value)


def _minimum(keywords: Keywords, place: Place) -> Iterator[Formula]:
    name = "over" if place.fields.get("exclusiveMinimum") is True else "least"
    yield keywords.formulas.atom(NUMBER, name, _bound(place, "minimum"))


def _maximum(keywords: Keywords, place: Place) -> Iterator[Formula]:
    name = "least" if place.fields.get("exclusiveMaximum") is True else "over"
    yield keywords.unless(keywords.formulas.atom(NUMBER, name, _bound(place, "maximum")))


def _exclusive_minimum(keywords: Keywords, place: Place) -> Iterator[Formula]:
    if not isinstance(place.fields["exclusiveMinimum"], bool):
        yield keywords.formulas.atom(NUMBER, "over", _bound(place, "exclusiveMinimum"))


def _exclusive_maximum(keywords: Keywords, place: Place) -> Iterator[Formula]:
    if not isinstance(place.fields["exclusiveMaximum"], bool):
        yield keywords.unless(keywords.formulas.atom(NUMBER, "least", _bound(place, "exclusiveMaximum")))


def _multiple_of(keywords: Keywords, place: Place) -> Iterator[Formula]:
    divisor = _bound(place, "multipleOf")
    if divisor <= 0:
        raise place.mistake("multipleOf", "it must be more than 0")
    yield keywords.formulas.atom(NUMBER, "multiple", divisor)


def _all_of(keywords: Keywords, place: Place) -> Iterator[Formula]:
    yield from keywords.children(place, "allOf")


def _any_of(keywords: Keywords, place: Place) -> Iterator[Formula]:
    yield keywords.formulas.any_of(keywords.children(place, "anyOf"))


def _one_of(keywords: Keywords, place: Place) -> Iterator[Formula]:
    """At least one, and no two: disjoint alternatives leave no trace."""
    make = keywords.formulas
    outer = make.types(_mask_of(place.fields))
    required = [make.atom(OBJECT, "has", name) for name in _required_names(place.fields)]
    children = [make.all_of([outer, keywords.expanded(child)]) for child in keywords.children(place, "oneOf")]
    yield make.any_of(children)
    overlaps: dict[Formula, None] = {}
    for left, right in combinations(children, 2):
        both = make.all_of([left, right])
        if _exclude_each_other(keywords, make.all_of([make.restricted(both, OBJECT), *required])):
            both = make.all_of([make.types(EVERY_TYPE & ~OBJECT), both])
        overlaps[both] = None
        if len(overlaps) > MAX_OVERLAPS:
            raise TooLargeError(f"more than {MAX_OVERLAPS} pairs of oneOf that may overlap")
    yield from map(make.negation, overlaps)


def _mask_of(fields: Fields) -> int:
    listed = fields.get("type")
    names = listed if isinstance(listed, list) else [listed]
    mask = 0
    for name in names:
        mask |= TYPES.get(name, EVERY_TYPE) if isinstance(name, str) else EVERY_TYPE
    return mask


def _required_names(fields: Fields) -> list[str]:
    listed = fields.get("required")
    return [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []


def _exclude_each_other(keywords: Keywords, both: Formula) -> bool:
    """Whether a property that two objects require has no value that both allow."""
    make = keywords.formulas
    conjuncts = [part for part in both.conjuncts() if part.kind == "atom"]
    required = [part.payload[1] for part in conjuncts if part.payload[0] == "has"]
    allowed: dict[str, list[Formula]] = {}
    for part in conjuncts:
        if part.payload[0] == "every":
            for name in required:
                if is_listed(make, name, part.payload[1]):
                    allowed.setdefault(name, []).append(part.payload[2])
    return any(
        make.false in values
        or (len(values) > 1 and make.all_of(map(keywords.expanded, values)) is make.false)
        for values in allowed.values()
    )


def _not(keywords: Keywords, place: Place) -> Iterator[Formula]:
    yield keywords.formulas.negation(keywords.child(place, "not"))


def _if(keywords: Keywords, place: Place) -> Iterator[Formula]:
    make = keywords.formulas
    condition = keywords.child(place, "if")
    if "then" in place.fields:
        yield make.any_of([make.negation(condition), keywords.child(place, "then")])
    if "else" in place.fields:
        yield make.any_of([condition, keywords.child(place, "else")])


def _identifier(keywords: Keywords, place: Place) -> Iterator[Formula]:
    identifier = place.fields["$id"]
    if not isinstance(identifier, str) or not is_uri(identifier):
        raise place.mistake("$id", "it is not a URI")
    yield keywords.formulas.true


def _referred(keyword: str, keywords: Keywords, place: Place) -> Iterator[Formula]:
    yield keywords.referred(place, keyword)


REFERENCES: dict[str, Reader] = {"$ref": partial(_referred, "$ref")}
READERS: dict[str, Reader] = {
    **OBJECTS,  # first, for their order of properties
    **ARRAYS,
    **REFERENCES,
    "$id": _identifier,
    "$dynamicRef": partial(_referred, "$dynamicRef"),
    "$recursiveRef": partial(_referred, "$recursiveRef"),
    "type": _type,
    "enum": _enum,
    "const": _const,
    "minLength": partial(_least, "minLength", STRING, "characters"),
    "maxLength": partial(_most, "maxLength", STRING, "characters"),
    "pattern": _pattern,
    "format": _format,
    "minimum": _minimum,
    "maximum": _maximum,
    "exclusiveMinimum": _exclusive_minimum,
    "exclusiveMaximum": _exclusive_maximum,
    "multipleOf": _multiple_of,
    "minItems": partial(_least, "minItems", ARRAY, "length"),
    "maxItems": partial(_most, "maxItems", ARRAY, "length"),
    "minProperties": partial(_least, "minProperties", OBJECT, "count"),
    "maxProperties": partial(_most, "maxProperties", OBJECT, "count"),
    **DEPENDENCIES,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "if": _if,
}
