"""`uniqueItems` of arrays whose items have few possible values: the state of an array knows the unused
values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import ceil, comb, floor

from ...errors import NotCoveredError
from .document import SchemaDocument
from .formula import Distinct, Formula, ItemFits
from .formulas import Formulas
from .json_text import Json
from .place import Fields, Place
from .values import exact_number, is_number, one_of_values

MAX_SETS = 512  # sets of unused values; an array has a node for each set
MAX_INTEGERS = 64  # integers in a range that is written out as a list
_LEAST, _MOST = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_OF_TYPE: dict[str, list[Json]] = {"null": [None], "boolean": [False, True]}


def unique_items(document: SchemaDocument, place: Place) -> Iterator[Formula]:
    if place.fields["uniqueItems"] is not True or _most_items(place) <= 1:
        return
    values = _Values(document).list_any(_list_item_schemas(place), place.base)
    distinct = dict.fromkeys(one_of_values(document.formulas, forms) for forms in _group_equal(values or ()))
    if values is None or not _are_few(len(distinct), _most_items(place)):
        reason = (
            "the items must have at most 9 possible values, listed by enum or const, or of the types boolean "
            "and null, or integer with a minimum and a maximum. A small maxItems allows more values: 30 with "
            "maxItems 2. List the values, or remove uniqueItems and drop repeated items yourself"
        )
        raise place.refusal("uniqueItems", reason)
    yield document.formulas.atom(Distinct(tuple(distinct)))


def _group_equal(values: Iterable[Json]) -> Iterable[list[Json]]:
    """The values in groups: 1 and 1.0 are equal."""
    groups: dict[object, list[Json]] = {}
    for value in values:
        key = exact_number(value) if is_number(value) else (type(value), value)
        groups.setdefault(key, []).append(value)
    return groups.values()


def after_distinct(make: Formulas, left: tuple[Formula, ...]) -> Formula:
    """The fact `Distinct(left)` after one more item."""
    said = make.false
    for value in reversed(left):
        found = make.atom(ItemFits(value))
        others = make.atom(Distinct(tuple(other for other in left if other is not value)))
        said = make.any_of([make.all_of([found, others]), make.all_of([make.negation(found), said])])
    return said


def _are_few(values: int, most_items: float) -> bool:
    """Whether at most `MAX_SETS` sets of used values are possible, each of up to `most_items` values."""
    sets = 0
    for used in range(int(min(values, most_items)) + 1):
        sets += comb(values, used)
        if sets > MAX_SETS:
            return False
    return True


def _most_items(place: Place) -> float:
    most = place.fields.get("maxItems")
    return most if is_number(most) else float("inf")


def _list_item_schemas(place: Place) -> list[Json]:
    """The schemas of the first items, and of all later ones if there may be any."""
    fields = place.fields
    items = fields.get("items", True)
    first = fields.get("prefixItems", [])
    if isinstance(items, list) and "prefixItems" not in fields:
        first, items = items, fields.get("additionalItems", True)
    listed = first if isinstance(first, list) else []
    return listed if _most_items(place) <= len(listed) else [*listed, items]


class _Values:
    """Finds a superset of the values that a subschema allows; None if it may be large."""

    def __init__(self, document: SchemaDocument) -> None:
        self._references = document.references
        self._known: dict[int, list[Json] | None] = {}

    def list_any(self, schemas: Iterable[Json], base: str) -> list[Json] | None:
        found: list[Json] = []
        for schema in schemas:
            values = self._list(schema, base)
            if values is None:
                return None
            found += values
        return found

    def _list(self, schema: Json, base: str) -> list[Json] | None:
        if not isinstance(schema, dict):
            return [] if schema is False else None
        if id(schema) not in self._known:
            self._known[id(schema)] = None  # the answer if the schema refers to itself
            self._known[id(schema)] = self._list_values(schema, self._references.base_of(schema, base))
        return self._known[id(schema)]

    def _list_values(self, schema: Fields, base: str) -> list[Json] | None:
        if "$ref" in schema:
            return self._follow(schema["$ref"], base)
        listed = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(listed, list):
            return None if any(isinstance(value, dict | list) for value in listed) else listed
        for keyword in ("anyOf", "oneOf"):
            alternatives = schema.get(keyword)
            if isinstance(alternatives, list):
                return self.list_any(alternatives, base)
        types = schema.get("type")
        names = [str(name) for name in (types if isinstance(types, list) else [types])]
        integers = _list_integers(schema) if "integer" in names else []
        if integers is None or not all(name in _OF_TYPE or name == "integer" for name in names):
            return None
        return [*integers, *(value for name in names for value in _OF_TYPE.get(name, ()))]

    def _follow(self, reference: Json, base: str) -> list[Json] | None:
        try:
            return self._list(*self._references.resolve("$ref", reference, base, ""))
        except NotCoveredError:
            return None


def _list_integers(schema: Fields) -> list[Json] | None:
    """The integers between a schema's bounds; None if a bound is missing or there are too many."""
    least = [exact_number(schema[name]) for name in _LEAST if is_number(schema.get(name))]
    most = [exact_number(schema[name]) for name in _MOST if is_number(schema.get(name))]
    if not least or not most:
        return None
    first, last = ceil(max(least)), floor(min(most))
    return list(range(first, last + 1)) if last - first < MAX_INTEGERS else None
