"""`unevaluatedProperties` and `unevaluatedItems`: names and items that no other keyword evaluates.

A subschema of the same value evaluates names and items too, but only if it holds. So each subschema gives a
pair: its condition, and the names or items that are *seen* if the condition holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple, TypeVar

from .document import SchemaDocument
from .formula import Formula, Items, Members, Strings
from .place import Place
from .same_value import APPLIED, find_applied

MAX_CONDITIONS = 5
Seen = TypeVar("Seen")


class _If(NamedTuple):
    """A subschema that applies if the condition holds."""

    condition: Formula
    place: Place


def other_names(document: SchemaDocument, place: Place) -> Formula:
    """The names outside of `properties` and `patternProperties` of one subschema."""
    make = document.formulas
    return make.all_of(map(make.negation, _find_covered(document, place)))


def _find_covered(document: SchemaDocument, place: Place) -> Iterator[Formula]:
    properties = place.get_object("properties")
    if properties:
        yield document.formulas.atom(Strings(frozenset(properties)))
    for pattern in place.get_object("patternProperties"):
        yield document.pattern(place, "patternProperties", pattern)


def unevaluated_properties(document: SchemaDocument, place: Place) -> Iterator[Formula]:
    make = document.formulas
    if "additionalProperties" in place.fields or place.fields["unevaluatedProperties"] is True:
        return
    child = document.child(place, "unevaluatedProperties")

    def find_seen(at: Place) -> Formula:
        is_whole = at is not place and any(
            keyword in at.fields for keyword in ("additionalProperties", "unevaluatedProperties")
        )
        return make.true if is_whole else make.any_of(_find_covered(document, at))

    def constrain_unseen(names: Sequence[Formula]) -> Formula:
        return make.atom(Members(make.negation(make.any_of(names)), child))

    yield from _for_all(document, place, "unevaluatedProperties", find_seen, constrain_unseen)


def unevaluated_items(document: SchemaDocument, place: Place) -> Iterator[Formula]:
    if place.fields["unevaluatedItems"] is True:
        return
    child = document.child(place, "unevaluatedItems")

    def find_seen(at: Place) -> int | None:
        """The number of first items that are seen; None for all."""
        if "contains" in at.fields:
            raise place.refusal("unevaluatedItems", "it is not supported beside contains")
        items, first = at.fields.get("items"), at.fields.get("prefixItems")
        if isinstance(items, list):
            is_whole = "additionalItems" in at.fields and first is None
        else:
            is_whole = items is not None
        if is_whole or (at is not place and "unevaluatedItems" in at.fields):
            return None
        return max(len(each) for each in (items, first, []) if isinstance(each, list))

    def constrain_unseen(counts: Sequence[int | None]) -> Formula:
        known = [count for count in counts if count is not None]
        if len(known) < len(counts):
            return document.formulas.true
        return document.formulas.atom(Items(max(known), None, child))

    yield from _for_all(document, place, "unevaluatedItems", find_seen, constrain_unseen)


def _for_all(
    document: SchemaDocument,
    place: Place,
    keyword: str,
    find_seen: Callable[[Place], Seen],
    constrain_unseen: Callable[[Sequence[Seen]], Formula],
) -> Iterator[Formula]:
    """For each set of conditions: if no other condition holds, the names or items that they leave unseen must
    satisfy the keyword."""
    make = document.formulas
    always, sometimes = [find_seen(place)], list[tuple[Formula, Seen]]()
    for condition, inner in _find_in_place(document, place, make.true, (place,)):
        if condition is make.true:
            always.append(find_seen(inner))
        else:
            sometimes.append((condition, find_seen(inner)))
    if len(sometimes) > MAX_CONDITIONS:
        raise place.refusal(keyword, f"it is not supported beside more than {MAX_CONDITIONS} alternatives")
    for size in range(len(sometimes) + 1):
        for held in combinations(range(len(sometimes)), size):
            others = [condition for number, (condition, _) in enumerate(sometimes) if number not in held]
            whole = constrain_unseen([*always, *(sometimes[number][1] for number in held)])
            yield make.any_of([*others, whole])


def _find_in_place(
    document: SchemaDocument, place: Place, condition: Formula, above: tuple[Place, ...]
) -> Iterator[_If]:
    """All subschemas of the same value, at any depth."""
    for _, holds, schema in find_applied(document, place, APPLIED):
        inner = document.place_of(schema)
        if inner is not None and inner not in above:
            both = document.formulas.all_of([condition, holds])
            yield _If(both, inner)
            yield from _find_in_place(document, inner, both, (*above, inner))
