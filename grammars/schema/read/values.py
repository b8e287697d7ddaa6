"""The formulas for listed values, of `enum` and `const`."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import TypeGuard

from ...errors import GrammarError
from .formula import (
    ARRAY,
    BOOLEAN,
    LIST,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    Atom,
    Formula,
    Has,
    IsTrue,
    Items,
    Members,
    MinItems,
    MinMembers,
    Numbers,
    Strings,
)
from .formulas import Formulas
from .json_text import Json


def one_of_values(make: Formulas, values: Sequence[Json]) -> Formula:
    strings = frozenset(value for value in values if isinstance(value, str))
    texts = frozenset(str(value) for value in values if is_number(value))
    parts = [make.all_of([make.types(STRING), make.atom(Strings(strings))])]
    if texts:
        numbers = Numbers(frozenset(map(exact_number, texts)), texts)
        parts.append(make.all_of([make.types(NUMBER), make.atom(numbers)]))
    others = (value for value in values if not isinstance(value, str) and not is_number(value))
    return make.any_of([*parts, *(_value(make, value) for value in others)])


def _value(make: Formulas, value: Json) -> Formula:
    if isinstance(value, bool):
        is_true = make.atom(IsTrue())
        return make.all_of([make.types(BOOLEAN), is_true if value else make.negation(is_true)])
    if isinstance(value, list):
        return _array(make, value)
    if isinstance(value, dict):
        return _object(make, value)
    assert value is None
    return make.types(NULL)


def _array(make: Formulas, items: list[Json]) -> Formula:
    said = [
        make.atom(Items(position, position + 1, one_of_values(make, [item])))
        for position, item in enumerate(items)
    ]
    least = [make.atom(MinItems(len(items)))] if items else []
    most = make.negation(make.atom(MinItems(len(items) + 1)))
    return make.all_of([make.types(ARRAY), *said, *least, most])


def _object(make: Formulas, members: dict[str, Json]) -> Formula:
    said = []
    for name, value in members.items():
        said.append(make.atom(Members(name_formula(make, name), one_of_values(make, [value]))))
        said.append(make.atom(Has(name)))
    if members:
        others = make.negation(make.atom(Strings(frozenset(members))))
        said.append(make.atom(Members(others, make.false)))
    else:
        said.append(make.negation(make.atom(MinMembers(1))))
    return make.all_of([make.types(OBJECT), *said])


def name_formula(make: Formulas, name: str) -> Formula:
    """A formula over names that holds for this name only."""
    return make.atom(Strings(frozenset([name])))


def is_listed(make: Formulas, name: str, names: Formula) -> bool:
    """Whether a formula over names consists only of lists, and holds for this name."""

    def decide(atom: Atom) -> Formula:
        return make.true if isinstance(atom.fact, Strings) and name in atom.fact.values else make.false

    return names.kinds == LIST and make.rewrite(names, ("name", name), decide) is make.true


def is_number(value: Json) -> TypeGuard[float]:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def exact_number(value: Json) -> Fraction:
    try:
        return Fraction(str(value))
    except ValueError:
        raise GrammarError(f"{value!r} is no JSON number") from None
