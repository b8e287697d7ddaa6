"""Forbids the properties that no subschema of an object declares.

It is as if every object with `properties` said `"unevaluatedProperties": false` if it does not say otherwise.
But names that other keywords mention stay allowed, because the object may need them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .document import SchemaDocument
from .formula import Formula, Members, Strings
from .json_text import list_texts
from .place import MAPS_BY_NAME, Place
from .same_value import Applied, find_applied, find_conjuncts, find_inside, places_of

MAX_ALTERNATIVES = 500  # alternatives of an object; if it has more, any names are allowed
_OPENING = ("additionalProperties", "unevaluatedProperties", "propertyNames")
"""keywords that say which undeclared properties an object may have"""


def forbid_undeclared(document: SchemaDocument, place: Place) -> Iterator[Formula]:
    """The formulas of one object. A name that only some alternatives declare needs one of them to hold."""
    make = document.formulas
    found = _Declarations(document)
    found.add([place], make.true, is_closed=False)
    found.mention(place.beside)
    names = {*found.always, *found.sometimes}
    needs_more = found.least > len(names) and not found.patterns
    is_too_large = found.alternatives > MAX_ALTERNATIVES
    if not found.is_closed or make.true in found.open_if or needs_more or is_too_large:
        return
    covered = [*([make.atom(Strings(frozenset(names)))] if names else ()), *found.patterns]
    others = make.all_of(map(make.negation, covered))
    yield make.any_of([make.atom(Members(others, make.false)), *found.open_if])
    alike: dict[tuple[Formula, ...], list[str]] = {}
    for name, conditions in found.sometimes.items():
        if name not in found.always:
            alike.setdefault(tuple(conditions), []).append(name)
    for declaring, listed in alike.items():
        absent = make.atom(Members(make.atom(Strings(frozenset(listed))), make.false))
        yield make.any_of([absent, *declaring, *found.open_if])


class _Declarations:
    """The names that an object may have.

    `sometimes`: the conditions under which a name is declared. `open_if`: the conditions under which any name
    is allowed. `least`: the most members that a subschema asks for. `is_closed`: some subschema has
    `properties`, and not only under a condition.
    """

    def __init__(self, document: SchemaDocument) -> None:
        self._document = document
        self._make = document.formulas
        self._declaring: dict[Formula, bool] = {}
        self._above: list[Place] = []
        self.is_closed = False
        self.always: set[str] = set()
        self.sometimes: dict[str, dict[Formula, None]] = {}
        self.patterns: list[Formula] = []
        self.open_if: list[Formula] = []
        self.least = 0
        self.alternatives = 0

    def add(self, places: Iterable[Place], condition: Formula, *, is_closed: bool) -> None:
        """Adds subschemas that count if the condition holds. `is_closed`: subschemas around them have
        `properties`."""
        parts = [part for part in find_conjuncts(self._document, places) if part not in self._above]
        is_closed = is_closed or _have_properties(parts)
        self.is_closed |= is_closed
        self._above += parts
        for part in parts:
            self._add_one(part, condition)
            for _, holds, schema in self._list_alternatives(part, is_closed=is_closed):
                self.alternatives += 1
                if self.alternatives > MAX_ALTERNATIVES:
                    return
                both = self._make.all_of([condition, holds])
                if is_closed or self._declares(schema):
                    self.add(places_of(self._document, [schema]), both, is_closed=is_closed)
                else:
                    self.open_if.append(both)
        del self._above[len(self._above) - len(parts) :]

    def mention(self, places: Iterable[Place]) -> None:
        """Adds the names in these subschemas, and in those inside them that apply to the same value (under
        `allOf` or `if`, say)."""
        for part in find_inside(self._document, places):
            self._add_one(part, self._make.true)

    def _add_one(self, place: Place, condition: Formula) -> None:
        """Adds what one subschema itself says."""
        fields = place.fields
        if any(keyword in fields for keyword in _OPENING):
            self.open_if.append(condition)
        for pattern in place.get_object("patternProperties"):
            self.patterns.append(self._document.pattern(place, "patternProperties", pattern))
        if condition is self._make.true:
            self.always.update(_list_declared(place))
        else:
            for name in _list_declared(place):
                self.sometimes.setdefault(name, {})[condition] = None
        if "minProperties" in fields:
            self.least = max(self.least, place.get_count("minProperties"))
        self.always.update(_list_mentioned(place))
        mentioning = [self._document.child(place, each) for each in ("if", "not") if each in fields]
        for other in find_inside(self._document, places_of(self._document, mentioning)):
            self.always.update((*_list_declared(other), *_list_mentioned(other)))

    def _list_alternatives(self, place: Place, *, is_closed: bool) -> Iterator[Applied]:
        """The subschemas that count sometimes. An object that is not closed yet is closed by alternatives, of
        which one must hold, but not by conditions."""
        for keyword in ("anyOf", "oneOf"):
            found = list(find_applied(self._document, place, (keyword,)))
            if is_closed or any(self._declares(each.schema) for each in found):
                yield from found
        if is_closed:
            yield from find_applied(self._document, place, ("then", "else", *MAPS_BY_NAME))

    def _declares(self, schema: Formula) -> bool:
        """Whether a subschema alone would close the object."""
        if schema not in self._declaring:
            self._declaring[schema] = False  # the answer if the schema refers to itself
            parts = find_conjuncts(self._document, places_of(self._document, [schema]))
            self._declaring[schema] = _have_properties(parts) or any(
                True for part in parts for _ in self._list_alternatives(part, is_closed=False)
            )
        return self._declaring[schema]


def _have_properties(places: Iterable[Place]) -> bool:
    return any("properties" in place.fields for place in places)


def _list_declared(place: Place) -> list[str]:
    return [*place.get_object("properties"), *list_texts(place.fields.get("required"))]


def _list_mentioned(place: Place) -> Iterator[str]:
    """The names that other keywords than `properties` and `required` mention."""
    for keyword in ("dependentRequired", *MAPS_BY_NAME):
        for name, needed in place.get_object(keyword).items():
            yield from (name, *list_texts(needed if isinstance(needed, list) else [needed]))
    values = place.fields.get("enum", [])
    for value in (place.fields.get("const"), *(values if isinstance(values, list) else [])):
        yield from value if isinstance(value, dict) else ()
