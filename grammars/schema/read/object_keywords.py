"""The formulas for the keywords of objects."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from .document import SchemaDocument
from .formula import STRING, Formula, Has, Members
from .place import Place
from .unevaluated import other_names, unevaluated_properties
from .values import name_formula


def _properties(document: SchemaDocument, place: Place) -> Iterator[Formula]:
    make = document.formulas
    for name in place.get_object("properties"):
        yield make.atom(Members(name_formula(make, name), document.child(place, "properties", name)))


def _required(document: SchemaDocument, place: Place) -> Iterator[Formula]:
    names = place.fields["required"]
    if isinstance(names, bool):  # draft 3 has `required` at the property; later drafts give that no meaning
        return
    for name in place.check_names("required", names):
        yield document.formulas.atom(Has(name))


def _pattern_properties(document: SchemaDocument, place: Place) -> Iterator[Formula]:
    for pattern in place.get_object("patternProperties"):
        names = document.pattern(place, "patternProperties", pattern)
        child = document.child(place, "patternProperties", pattern)
        yield document.formulas.atom(Members(names, child))


def _additional_properties(document: SchemaDocument, place: Place) -> Iterator[Formula]:
    if place.fields["additionalProperties"] is not True:
        child = document.child(place, "additionalProperties")
        yield document.formulas.atom(Members(other_names(document, place), child))


def _property_names(document: SchemaDocument, place: Place) -> Iterator[Formula]:
    make = document.formulas
    names = make.restrict(document.expand(document.child(place, "propertyNames")), STRING)
    yield make.atom(Members(make.negation(names), make.false))


def _dependencies(keyword: str, document: SchemaDocument, place: Place) -> Iterator[Formula]:
    make = document.formulas
    for name, needed in place.get_object(keyword).items():
        if isinstance(needed, list | str):
            listed = place.check_names(keyword, [needed] if isinstance(needed, str) else needed)
            needs = make.all_of(make.atom(Has(other)) for other in listed)
        else:
            needs = document.child(place, keyword, name)
        yield make.any_of([document.unless(Has(name)), needs])


OBJECTS = {
    "properties": _properties,
    "required": _required,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "unevaluatedProperties": unevaluated_properties,
    "propertyNames": _property_names,
}
DEPENDENCIES = {
    name: partial(_dependencies, name) for name in ("dependentRequired", "dependentSchemas", "dependencies")
}
