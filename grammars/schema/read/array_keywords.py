"""The formulas for the keywords of arrays."""

from __future__ import annotations

from collections.abc import Iterator

from .document import SchemaDocument
from .formula import Contains, Formula, Items
from .place import Place
from .unevaluated import unevaluated_items
from .uniqueness import unique_items


def _prefix_items(document: SchemaDocument, place: Place) -> Iterator[Formula]:
    if isinstance(place.fields["prefixItems"], list):
        yield from _in_order(document, place, "prefixItems")


def _items(document: SchemaDocument, place: Place) -> Iterator[Formula]:
    items = place.fields["items"]
    if isinstance(items, list) and "prefixItems" not in place.fields:
        yield from _in_order(document, place, "items")
    elif items is not True:
        first = place.fields.get("prefixItems")
        yield from _from(document, place, "items", len(first) if isinstance(first, list) else 0)


def _additional_items(document: SchemaDocument, place: Place) -> Iterator[Formula]:
    items = place.fields.get("items")
    if isinstance(items, list) and "prefixItems" not in place.fields:
        yield from _from(document, place, "additionalItems", len(items))


def _in_order(document: SchemaDocument, place: Place, keyword: str) -> Iterator[Formula]:
    children = document.children(place, keyword) if place.fields[keyword] else []
    for position, child in enumerate(children):
        yield document.formulas.atom(Items(position, position + 1, child))


def _from(document: SchemaDocument, place: Place, keyword: str, first: int) -> Iterator[Formula]:
    if place.fields[keyword] is not True:
        yield document.formulas.atom(Items(first, None, document.child(place, keyword)))


def _contains(document: SchemaDocument, place: Place) -> Iterator[Formula]:
    child = document.child(place, "contains")
    least = place.get_count("minContains") if "minContains" in place.fields else 1
    if least:
        yield document.formulas.atom(Contains(child, least))
    if "maxContains" in place.fields:
        most = place.get_count("maxContains")
        yield document.unless(Contains(child, most + 1))


ARRAYS = {
    "prefixItems": _prefix_items,
    "items": _items,
    "additionalItems": _additional_items,
    "contains": _contains,
    "unevaluatedItems": unevaluated_items,
    "uniqueItems": unique_items,
}
