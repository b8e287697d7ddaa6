"""What the keywords of arrays say, as formulas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .formula import ARRAY, Formula
from .place import Place
from .unevaluated import unevaluated_items
from .uniqueness import unique_items

if TYPE_CHECKING:
    from .keywords import Keywords


def _prefix_items(keywords: Keywords, place: Place) -> Iterator[Formula]:
    if isinstance(place.fields["prefixItems"], list):
        yield from _in_order(keywords, place, "prefixItems")


def _items(keywords: Keywords, place: Place) -> Iterator[Formula]:
    items = place.fields["items"]
    if isinstance(items, list) and "prefixItems" not in place.fields:
        yield from _in_order(keywords, place, "items")
    elif items is not True:
        first = place.fields.get("prefixItems")
        yield from _from(keywords, place, "items", len(first) if isinstance(first, list) else 0)


def _additional_items(keywords: Keywords, place: Place) -> Iterator[Formula]:
    items = place.fields.get("items")
    if isinstance(items, list) and "prefixItems" not in place.fields:
        yield from _from(keywords, place, "additionalItems", len(items))


def _in_order(keywords: Keywords, place: Place, keyword: str) -> Iterator[Formula]:
    children = keywords.children(place, keyword) if place.fields[keyword] else []
    for position, child in enumerate(children):
        yield keywords.formulas.atom(ARRAY, "items", position, position + 1, child)


def _from(keywords: Keywords, place: Place, keyword: str, first: int) -> Iterator[Formula]:
    if place.fields[keyword] is not True:
        yield keywords.formulas.atom(ARRAY, "items", first, None, keywords.child(place, keyword))


def _contains(keywords: Keywords, place: Place) -> Iterator[Formula]:
    child = keywords.child(place, "contains")
    least = place.count("minContains") if "minContains" in place.fields else 1
    if least:
        yield keywords.formulas.atom(ARRAY, "contains", child, least)
    if "maxContains" in place.fields:
        most = place.count("maxContains")
        yield keywords.unless(keywords.formulas.atom(ARRAY, "contains", child, most + 1))


ARRAYS = {
    "prefixItems": _prefix_items,
    "items": _items,
    "additionalItems": _additional_items,
    "contains": _contains,
    "unevaluatedItems": unevaluated_items,
    "uniqueItems": unique_items,
}
