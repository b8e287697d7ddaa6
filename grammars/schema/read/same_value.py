"""Finds the subschemas that apply to the same value: the names that one of them declares are allowed in the
others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from .document import SchemaDocument
from .formula import OBJECT, Formula, Has
from .place import MAPS_BY_NAME, REFERENCES, SAME_VALUE, Place

MAX_BESIDE = 16
_LISTS = ("allOf", "anyOf", "oneOf")
APPLIED = (*REFERENCES, *_LISTS, "if", "then", "else", *MAPS_BY_NAME)
_IN_PLACE = (*_LISTS, *MAPS_BY_NAME, "not", "if", "then", "else")
_ITEMS = ("items", "prefixItems", "additionalItems", "unevaluatedItems", "contains")
_MAPS = ("properties", "patternProperties")
_OTHERS = ("additionalProperties", "unevaluatedProperties")
_SAYING = frozenset(
    (
        *(*REFERENCES, *_IN_PLACE, *_ITEMS, *_MAPS, *_OTHERS),
        *("required", "propertyNames", "minProperties", "dependentRequired", "enum", "const"),
    )
)
"""keywords that may name members of a value, or of values inside it"""


def find_conjuncts(document: SchemaDocument, places: Iterable[Place]) -> list[Place]:
    """The subschemas, and those that always apply together with them."""
    return _find_reached(document, places, ("allOf",))


def find_inside(document: SchemaDocument, places: Iterable[Place]) -> list[Place]:
    """The subschemas, and those inside them that apply to the same value (under `anyOf` or `if`, say)."""
    return _find_reached(document, places, _IN_PLACE)


def _find_reached(document: SchemaDocument, places: Iterable[Place], keywords: Sequence[str]) -> list[Place]:
    found = list(dict.fromkeys(places))
    seen = set(found)
    for place in found:
        near = dict.fromkeys(places_of(document, _find_under(document, place, keywords)))
        found += [each for each in near if each not in seen]
        seen.update(near)
    return found


def places_of(document: SchemaDocument, schemas: Iterable[Formula]) -> list[Place]:
    return [place for place in map(document.place_of, schemas) if place is not None]


def _find_under(document: SchemaDocument, place: Place, keywords: Sequence[str]) -> Iterator[Formula]:
    """The subschemas under these keywords, and those that references lead to."""
    for keyword in REFERENCES:
        if keyword in place.fields:
            yield document.refer(place, keyword)
    for keyword in keywords:
        for steps in _steps(place, keyword):
            yield document.child(place, *steps)


def _steps(place: Place, keyword: str) -> Iterator[tuple[str | int, ...]]:
    """The steps from a subschema to each subschema under a keyword."""
    value = place.fields.get(keyword)
    if isinstance(value, list):
        yield from ((keyword, position) for position in range(len(value)))
    elif isinstance(value, dict) and keyword in (*_MAPS, *MAPS_BY_NAME):
        yield from ((keyword, name) for name, each in value.items() if isinstance(each, dict | bool))
    elif isinstance(value, dict):
        yield (keyword,)


class Applied(NamedTuple):
    """A subschema of the same value that applies if the condition holds."""

    keyword: str
    condition: Formula
    schema: Formula


def find_applied(document: SchemaDocument, place: Place, keywords: Iterable[str]) -> Iterator[Applied]:
    """The direct subschemas of the same value under these keywords, without those that are negated."""
    make, fields = document.formulas, place.fields
    for keyword in keywords:
        if keyword in MAPS_BY_NAME:
            for name, needed in place.get_object(keyword).items():
                if isinstance(needed, dict):
                    present = make.all_of([make.types(OBJECT), make.atom(Has(name))])
                    yield Applied(keyword, present, document.child(place, keyword, name))
        elif keyword not in fields:
            continue
        elif keyword in REFERENCES:
            yield Applied(keyword, make.true, document.refer(place, keyword))
        elif keyword in _LISTS:
            for child in document.children(place, keyword):
                yield Applied(keyword, make.true if keyword == "allOf" else child, child)
        elif "if" in fields:
            held = document.child(place, "if")
            condition = make.negation(held) if keyword == "else" else held
            yield Applied(keyword, condition, document.child(place, keyword))


def find_beside(
    document: SchemaDocument, place: Place, steps: Sequence[str | int]
) -> tuple[Place, ...] | None:
    """The subschemas that apply to the same value as a subschema's part and name members; None if too many.

    Some may never apply: any pattern may match a name.
    """
    if steps[0] in SAME_VALUE:
        found = [*place.beside, document.rest(place, steps)]
    else:
        found = _find_same_part(document, place, steps)
    kept = {document.identity(each): each for each in found if not _SAYING.isdisjoint(each.fields)}
    for own in places_of(document, [document.part(place.as_written(), steps)]) if kept else ():
        kept.pop(document.identity(own), None)
    return tuple(kept.values()) if len(kept) <= MAX_BESIDE else None


def _find_same_part(document: SchemaDocument, place: Place, steps: Sequence[str | int]) -> list[Place]:
    """The subschemas of the same members or items."""
    keyword, *inner = steps
    written = place.as_written()
    others = [each for each in find_inside(document, [written, *place.beside]) if each is not written]
    found: list[tuple[Place, tuple[str | int, ...]]] = []
    if keyword in _ITEMS:
        found += [(written, each) for each in _steps(place, "contains")]
        found += [(other, each) for other in others for each in _all_steps(other, _ITEMS)]
    elif keyword == "properties":
        found += [(written, each) for each in _steps(place, "patternProperties")]
        for other in others:
            if inner[0] in other.get_object("properties"):
                found.append((other, tuple(steps)))
            else:
                found += [(other, each) for each in _all_steps(other, _OTHERS)]
            found += [(other, each) for each in _steps(other, "patternProperties")]
    else:
        own = _MAPS if keyword == "patternProperties" else ()
        found += [(written, each) for each in _all_steps(written, own) if each != tuple(steps)]
        found += [(other, each) for other in others for each in _all_steps(other, (*_MAPS, *_OTHERS))]
    return places_of(document, (document.child(other, *each) for other, each in found))


def _all_steps(place: Place, keywords: Sequence[str]) -> Iterator[tuple[str | int, ...]]:
    for keyword in keywords:
        yield from _steps(place, keyword)
