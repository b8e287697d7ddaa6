"""JSON schema keywords as formulas. Subschemas stay unread until a value is compared with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import combinations
from typing import TypeAlias

from ..errors import GrammarError, NotCoveredError, TooLargeError
from ..json_schema import Json
from .formats import FORMATS
from .formula import ARRAY, BOOLEAN, EVERY_TYPE, NULL, NUMBER, OBJECT, STRING, Formula, Formulas
from .identities import Identities
from .references import References
from .values import exact_number, is_number, name_formula, one_of_values

TYPES = {
    "null": NULL,
    "boolean": BOOLEAN,
    "number": NUMBER,
    "integer": NUMBER,
    "string": STRING,
    "object": OBJECT,
    "array": ARRAY,
}
_REFUSED = {
    "$dynamicRef": "dynamic references are not supported",
    "$recursiveRef": "dynamic references are not supported",
    "unevaluatedItems": "it is not supported",
}
MAX_OVERLAPS = 200
_IN_PLACE = ("$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas", "dependencies")
Fields: TypeAlias = "dict[str, Json]"


class Place:
    """A subschema: what it says, where it stands and what references in it are relative to."""

    __slots__ = ("base", "fields", "path")

    def __init__(self, fields: Fields, path: str, base: str) -> None:
        self.fields = fields
        self.path = path
        self.base = base

    def refusal(self, keyword: str, reason: str) -> NotCoveredError:
        return NotCoveredError(keyword, f"{self.path}/{keyword}", reason)


class Keywords:
    """Reads one schema document. `whole` is its formula, `expanded` opens the subschemas of one value."""

    def __init__(self, root: Json, formulas: Formulas) -> None:
        self.formulas = formulas
        self._references = References(root)
        self._places: list[Place] = []
        self._known: dict[tuple[int, str], Formula] = {}
        self._identities = Identities()
        self._opened: dict[int, Formula | None] = {}
        self.path_of_pattern: dict[str, tuple[str, str]] = {}
        self.whole = self._schema(root, "#", self._references.base)

    def expanded(self, formula: Formula) -> Formula:
        return self.formulas.rewritten(formula, "expanded", self._opened_atom)

    def _opened_atom(self, atom: Formula) -> Formula:
        if atom.payload[0] != "schema":
            return atom
        number: int = atom.payload[1]
        place = self._places[number]
        if number not in self._opened:
            self._opened[number] = None
            self._opened[number] = self.expanded(self._fields(place))
        opened = self._opened[number]
        if opened is None:
            raise place.refusal("$ref", "it refers to itself")
        return opened

    def _schema(self, schema: Json, path: str, base: str) -> Formula:
        """An atom that stands for the subschema."""
        if isinstance(schema, bool):
            return self.formulas.true if schema else self.formulas.false
        if not isinstance(schema, dict):
            raise GrammarError(f"the schema at {path} must be an object or a boolean")
        base = self._references.base_of(schema, base)
        key = (self._identities.of(schema), base)
        known = self._known.get(key)
        if known is None:
            if schema:
                self._places.append(Place(schema, path, base))
                known = self.formulas.atom(EVERY_TYPE, "schema", len(self._places) - 1)
            else:
                known = self.formulas.true
            self._known[key] = known
        return known

    def _fields(self, place: Place) -> Formula:
        fields = place.fields
        if "$ref" in fields and self._references.ignores_siblings:
            return self._reference(place)
        for keyword, reason in _REFUSED.items():
            if fields.get(keyword, True) is not True:
                raise place.refusal(keyword, reason)
        parts = [*self._object(place), *self._array(place)]  # first, for their order of properties
        parts += [
            part for keyword, read in _READERS.items() if keyword in fields for part in read(self, place)
        ]
        return self.formulas.all_of(parts)

    def _child(self, place: Place, *steps: str | int) -> Formula:
        schema: Json = place.fields
        for step in steps:
            schema = schema[step]  # type: ignore[index]
        path = "/".join([place.path, *(str(step).replace("~", "~0").replace("/", "~1") for step in steps)])
        return self._schema(schema, path, place.base)

    def _children(self, place: Place, keyword: str) -> list[Formula]:
        listed = place.fields[keyword]
        if not isinstance(listed, list) or not listed:
            raise place.refusal(keyword, "it must be a list of at least one schema")
        return [self._child(place, keyword, position) for position in range(len(listed))]

    def _named(self, place: Place, keyword: str) -> dict[str, Json]:
        named = place.fields.get(keyword, {})
        if not isinstance(named, dict):
            raise place.refusal(keyword, "it must be an object")
        return named

    def _unless(self, atom: Formula) -> Formula:
        """A keyword that holds where an atom does not, and for values of other types."""
        others = self.formulas.types(EVERY_TYPE & ~atom.types)
        return self.formulas.any_of([others, self.formulas.negation(atom)])

    def _reference(self, place: Place) -> Formula:
        schema, base = self._references.resolve(place.fields["$ref"], place.base, f"{place.path}/$ref")
        return self._schema(schema, str(place.fields["$ref"]), base)

    def _type(self, place: Place) -> Iterator[Formula]:
        listed = place.fields["type"]
        names = listed if isinstance(listed, list) else [listed]
        mask = 0
        for name in names:
            if not isinstance(name, str) or name not in TYPES:
                raise place.refusal("type", f"{name!r} is not a type")
            mask |= TYPES[name]
        yield self.formulas.types(mask)
        if "integer" in names and "number" not in names:
            yield self.formulas.atom(NUMBER, "integer")

    def _enum(self, place: Place) -> Iterator[Formula]:
        listed = place.fields["enum"]
        if not isinstance(listed, list) or not listed:
            raise place.refusal("enum", "it must be a list of at least one value")
        yield one_of_values(self.formulas, listed)

    def _const(self, place: Place) -> Iterator[Formula]:
        yield one_of_values(self.formulas, [place.fields["const"]])

    def _all_of(self, place: Place) -> Iterator[Formula]:
        yield from self._children(place, "allOf")

    def _any_of(self, place: Place) -> Iterator[Formula]:
        yield self.formulas.any_of(self._children(place, "anyOf"))

    def _one_of(self, place: Place) -> Iterator[Formula]:
        """At least one, and no two: disjoint alternatives leave no trace."""
        make = self.formulas
        outer = [make.types(_mask_of(place.fields))]
        children = [make.all_of([*outer, self.expanded(child)]) for child in self._children(place, "oneOf")]
        yield make.any_of(children)
        overlaps: dict[Formula, None] = {}
        for left, right in combinations(children, 2):
            both = make.all_of([left, right])
            if self._exclude_each_other(make.restricted(both, OBJECT)):
                both = make.all_of([make.types(EVERY_TYPE & ~OBJECT), both])
            overlaps[both] = None
            if len(overlaps) > MAX_OVERLAPS:
                raise TooLargeError(f"more than {MAX_OVERLAPS} pairs of oneOf that may overlap")
        yield from map(make.negation, overlaps)

    def _exclude_each_other(self, both: Formula) -> bool:
        """Whether a property that two objects both require has no value that both allow."""
        conjuncts = both.conjuncts()
        required = {part.payload[1] for part in conjuncts if part.kind == "atom" and part.payload[0] == "has"}
        allowed: dict[str, list[Formula]] = {}
        for part in conjuncts:
            if part.kind == "atom" and part.payload[0] == "every":
                for name in required:
                    if part.payload[1] is name_formula(self.formulas, name):
                        allowed.setdefault(name, []).append(part.payload[2])
        return any(
            self.formulas.all_of(map(self.expanded, values)) is self.formulas.false
            for values in allowed.values()
            if len(values) > 1
        )

    def _not(self, place: Place) -> Iterator[Formula]:
        yield self.formulas.negation(self._child(place, "not"))

    def _if(self, place: Place) -> Iterator[Formula]:
        condition = self._child(place, "if")
        if "then" in place.fields:
            yield self.formulas.any_of([self.formulas.negation(condition), self._child(place, "then")])
        if "else" in place.fields:
            yield self.formulas.any_of([condition, self._child(place, "else")])

    def _count(self, place: Place, keyword: str) -> int:
        value = place.fields[keyword]
        if not is_number(value) or value < 0 or value != int(value):  # type: ignore[operator,arg-type]
            raise place.refusal(keyword, "it must be a whole number of at least 0")
        return int(value)

    def _least(self, place: Place, keyword: str, types: int, name: str) -> Iterator[Formula]:
        count = self._count(place, keyword)
        if count:
            yield self.formulas.atom(types, name, count)

    def _most(self, place: Place, keyword: str, types: int, name: str) -> Iterator[Formula]:
        yield self._unless(self.formulas.atom(types, name, self._count(place, keyword) + 1))

    def _pattern(self, place: Place) -> Iterator[Formula]:
        yield self._pattern_atom(place, "pattern", place.fields["pattern"])

    def _pattern_atom(self, place: Place, keyword: str, pattern: Json) -> Formula:
        if not isinstance(pattern, str):
            raise place.refusal(keyword, "it must be a string")
        self.path_of_pattern.setdefault(pattern, (keyword, f"{place.path}/{keyword}"))
        return self.formulas.atom(STRING, "pattern", pattern)

    def _format(self, place: Place) -> Iterator[Formula]:
        name = place.fields["format"]
        if not isinstance(name, str) or name not in FORMATS:
            types = place.fields.get("type", "string")
            if "string" not in (types if isinstance(types, list) else [types]):
                return
            raise place.refusal("format", f"the format {name!r} is not known")
        yield self.formulas.atom(STRING, "format", name)

    def _bound(self, place: Place, keyword: str) -> Fraction:
        value = place.fields[keyword]
        if not is_number(value):
            raise place.refusal(keyword, "it must be a number")
        return exact_number(value)

    def _minimum(self, place: Place) -> Iterator[Formula]:
        name = "over" if place.fields.get("exclusiveMinimum") is True else "least"
        yield self.formulas.atom(NUMBER, name, self._bound(place, "minimum"))

    def _maximum(self, place: Place) -> Iterator[Formula]:
        name = "least" if place.fields.get("exclusiveMaximum") is True else "over"
        yield self._unless(self.formulas.atom(NUMBER, name, self._bound(place, "maximum")))

    def _exclusive_minimum(self, place: Place) -> Iterator[Formula]:
        if not isinstance(place.fields["exclusiveMinimum"], bool):
            yield self.formulas.atom(NUMBER, "over", self._bound(place, "exclusiveMinimum"))

    def _exclusive_maximum(self, place: Place) -> Iterator[Formula]:
        if not isinstance(place.fields["exclusiveMaximum"], bool):
            yield self._unless(self.formulas.atom(NUMBER, "least", self._bound(place, "exclusiveMaximum")))

    def _multiple_of(self, place: Place) -> Iterator[Formula]:
        divisor = self._bound(place, "multipleOf")
        if divisor <= 0:
            raise place.refusal("multipleOf", "it must be more than 0")
        yield self.formulas.atom(NUMBER, "multiple", divisor)

    def _object(self, place: Place) -> Iterator[Formula]:
        fields, make = place.fields, self.formulas
        properties = self._named(place, "properties")
        patterns = self._named(place, "patternProperties")
        for name in properties:
            yield make.atom(
                OBJECT, "every", name_formula(self.formulas, name), self._child(place, "properties", name)
            )
        yield from self._required(place)
        covered = [make.atom(STRING, "in", frozenset(properties))] if properties else []
        for pattern in patterns:
            names = self._pattern_atom(place, "patternProperties", pattern)
            covered.append(names)
            yield make.atom(OBJECT, "every", names, self._child(place, "patternProperties", pattern))
        keyword = self._rest_keyword(place)
        if fields.get(keyword, True) is not True:
            others = make.all_of(map(make.negation, covered))
            yield make.atom(OBJECT, "every", others, self._child(place, keyword))
        if "propertyNames" in fields:
            names = make.restricted(self.expanded(self._child(place, "propertyNames")), STRING)
            yield make.atom(OBJECT, "every", make.negation(names), make.false)

    def _rest_keyword(self, place: Place) -> str:
        """`unevaluatedProperties` is `additionalProperties` where nothing else evaluates properties."""
        fields = place.fields
        if fields.get("unevaluatedProperties", True) is True or "additionalProperties" in fields:
            return "additionalProperties"
        if any(keyword in fields for keyword in _IN_PLACE):
            raise place.refusal("unevaluatedProperties", "it is not supported beside other schemas")
        return "unevaluatedProperties"

    def _required(self, place: Place) -> Iterator[Formula]:
        names = place.fields.get("required", [])
        if isinstance(names, bool):  # draft 3, on the property itself: no meaning since
            return
        yield from map(self._has, self._name_list(place, "required", names))

    def _name_list(self, place: Place, keyword: str, names: Json) -> list[str]:
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise place.refusal(keyword, "it must be a list of names")
        return names  # type: ignore[return-value]

    def _has(self, name: str) -> Formula:
        return self.formulas.atom(OBJECT, "has", name)

    def _dependencies(self, place: Place, keyword: str) -> Iterator[Formula]:
        for name, needed in self._named(place, keyword).items():
            if isinstance(needed, list):
                needs = self.formulas.all_of(map(self._has, self._name_list(place, keyword, needed)))
            elif isinstance(needed, str):
                needs = self._has(needed)
            else:
                needs = self._child(place, keyword, name)
            yield self.formulas.any_of([self._unless(self._has(name)), needs])

    def _array(self, place: Place) -> Iterator[Formula]:
        fields, make = place.fields, self.formulas
        first = "prefixItems" if "prefixItems" in fields else "items"
        rest = "items" if "prefixItems" in fields else "additionalItems"
        if isinstance(fields.get(first), list):
            positional = self._children(place, first) if fields[first] else []
            for position, child in enumerate(positional):
                yield make.atom(ARRAY, "items", position, position + 1, child)
            if fields.get(rest, True) is not True:
                yield make.atom(ARRAY, "items", len(positional), None, self._child(place, rest))
        elif fields.get("items", True) is not True:
            yield make.atom(ARRAY, "items", 0, None, self._child(place, "items"))
        if "contains" in fields:
            yield from self._contains(place)

    def _contains(self, place: Place) -> Iterator[Formula]:
        child = self._child(place, "contains")
        least = self._count(place, "minContains") if "minContains" in place.fields else 1
        if least:
            yield self.formulas.atom(ARRAY, "contains", child, least)
        if "maxContains" in place.fields:
            most = self._count(place, "maxContains")
            yield self._unless(self.formulas.atom(ARRAY, "contains", child, most + 1))

    def _unique_items(self, place: Place) -> Iterator[Formula]:
        most = place.fields.get("maxItems")
        if place.fields["uniqueItems"] is True and not (is_number(most) and most <= 1):  # type: ignore[operator]
            raise place.refusal("uniqueItems", "it is not supported for more than one item")
        yield from ()

    def _referred(self, place: Place) -> Iterator[Formula]:
        yield self._reference(place)


_READERS: dict[str, Callable[[Keywords, Place], Iterator[Formula]]] = {
    "$ref": Keywords._referred,
    "type": Keywords._type,
    "enum": Keywords._enum,
    "const": Keywords._const,
    "minLength": lambda self, place: self._least(place, "minLength", STRING, "characters"),
    "maxLength": lambda self, place: self._most(place, "maxLength", STRING, "characters"),
    "pattern": Keywords._pattern,
    "format": Keywords._format,
    "minimum": Keywords._minimum,
    "maximum": Keywords._maximum,
    "exclusiveMinimum": Keywords._exclusive_minimum,
    "exclusiveMaximum": Keywords._exclusive_maximum,
    "multipleOf": Keywords._multiple_of,
    "minItems": lambda self, place: self._least(place, "minItems", ARRAY, "length"),
    "maxItems": lambda self, place: self._most(place, "maxItems", ARRAY, "length"),
    "uniqueItems": Keywords._unique_items,
    "minProperties": lambda self, place: self._least(place, "minProperties", OBJECT, "count"),
    "maxProperties": lambda self, place: self._most(place, "maxProperties", OBJECT, "count"),
    "dependentRequired": lambda self, place: self._dependencies(place, "dependentRequired"),
    "dependentSchemas": lambda self, place: self._dependencies(place, "dependentSchemas"),
    "dependencies": lambda self, place: self._dependencies(place, "dependencies"),
    "allOf": Keywords._all_of,
    "anyOf": Keywords._any_of,
    "oneOf": Keywords._one_of,
    "not": Keywords._not,
    "if": Keywords._if,
}


def _mask_of(fields: Fields) -> int:
    listed = fields.get("type")
    names = listed if isinstance(listed, list) else [listed]
    mask = 0
    for name in names:
        mask |= TYPES.get(name, EVERY_TYPE) if isinstance(name, str) else EVERY_TYPE
    return mask
