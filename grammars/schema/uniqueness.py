"""`uniqueItems` of arrays whose items have few possible values: the values that are left, one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ..errors import NotCoveredError
from ..json_schema import Json
from .formula import ARRAY, Formula, Formulas
from .place import Fields, Place
from .values import is_number, one_of_values

if TYPE_CHECKING:
    from .keywords import Keywords

MAX_DISTINCT = 8  # an array has a place for each set of values that are left
_OF_TYPE: dict[str, list[Json]] = {"null": [None], "boolean": [False, True]}


def unique_items(keywords: Keywords, place: Place) -> Iterator[Formula]:
    if place.fields["uniqueItems"] is not True or _most_items(place) <= 1:
        return
    values = _Values(keywords).of_any(_item_schemas(place), place.base)
    distinct = dict.fromkeys(one_of_values(keywords.formulas, [value]) for value in values or ())
    if values is None or len(distinct) > MAX_DISTINCT:
        reason = f"it is supported for items of at most {MAX_DISTINCT} values (enum, const, boolean, null)"
        raise place.refusal("uniqueItems", reason)
    yield keywords.formulas.atom(ARRAY, "distinct", tuple(distinct))


def after_distinct(make: Formulas, left: tuple[Formula, ...]) -> Formula:
    """`distinct` says that the items are among those values, of which none comes twice."""
    said = make.false
    for value in reversed(left):
        found = make.atom(ARRAY, "child", value)
        others = make.atom(ARRAY, "distinct", tuple(other for other in left if other is not value))
        said = make.any_of([make.all_of([found, others]), make.all_of([make.negation(found), said])])
    return said


def _most_items(place: Place) -> float:
    most = place.fields.get("maxItems")
    return most if is_number(most) else float("inf")  # type: ignore[return-value]


def _item_schemas(place: Place) -> list[Json]:
    """Those of the first positions, and of all later ones if these may come."""
    fields = place.fields
    items = fields.get("items", True)
    first = fields.get("prefixItems", [])
    if isinstance(items, list) and "prefixItems" not in fields:
        first, items = items, fields.get("additionalItems", True)
    listed = first if isinstance(first, list) else []
    return listed if _most_items(place) <= len(listed) else [*listed, items]


class _Values:
    """All values that subschemas allow, and perhaps more; None where they may be many."""

    def __init__(self, keywords: Keywords) -> None:
        self._references = keywords.references
        self._known: dict[int, list[Json] | None] = {}

    def of_any(self, schemas: Iterable[Json], base: str) -> list[Json] | None:
        found: list[Json] = []
        for schema in schemas:
            values = self._of(schema, base)
            if values is None:
                return None
            found += values
        return found

    def _of(self, schema: Json, base: str) -> list[Json] | None:
        if not isinstance(schema, dict):
            return [] if schema is False else None
        if id(schema) not in self._known:
            self._known[id(schema)] = None  # as long as it refers to itself
            self._known[id(schema)] = self._said(schema, self._references.base_of(schema, base))
        return self._known[id(schema)]

    def _said(self, schema: Fields, base: str) -> list[Json] | None:
        if "$ref" in schema:
            return self._referred(schema["$ref"], base)
        listed = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(listed, list):
            return None if any(isinstance(value, dict | list) for value in listed) else listed
        for keyword in ("anyOf", "oneOf"):
            alternatives = schema.get(keyword)
            if isinstance(alternatives, list):
                return self.of_any(alternatives, base)
        types = schema.get("type")
        names = [str(name) for name in (types if isinstance(types, list) else [types])]
        if not all(name in _OF_TYPE for name in names):
            return None
        return [value for name in names for value in _OF_TYPE[name]]

    def _referred(self, reference: Json, base: str) -> list[Json] | None:
        try:
            return self._of(*self._references.resolve("$ref", reference, base, ""))
        except NotCoveredError:
            return None
