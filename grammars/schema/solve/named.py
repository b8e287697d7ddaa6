"""Finds the property names in formulas over an object."""

from __future__ import annotations

from collections.abc import Iterator

from ..read.formula import Atom, Fact, Formula, Has, Members, Not, Strings
from .outcomes import Goal


def only_name(formula: Formula) -> str | None:
    """The only declared name that an atom is about; None for other formulas."""
    match formula:
        case Atom(Has(name)):
            return name
        case Atom(Members(Atom(Strings(names)))) if len(names) == 1:
            return next(iter(names))
    return None


def list_declared_names(goal: Goal) -> list[str]:
    """Every listed name: the properties in order of declaration, then the others."""
    said = [atom for formula in goal for atom in formula.atoms()]
    properties = [only_name(atom) for atom in said if isinstance(atom.fact, Members)]
    declared = [name for name in properties if name is not None]
    return list(dict.fromkeys([*declared, *(name for atom in said for name in _list_names(atom.fact))]))


def _list_names(fact: Fact) -> Iterator[str]:
    match fact:
        case Has(name):
            yield name
        case Members(names):
            for atom in names.atoms():
                if isinstance(atom.fact, Strings):
                    yield from sorted(atom.fact.values)


def find_names_to_violate(formula: Formula) -> Iterator[str]:
    """Declared names whose value may have to violate a constraint so that the formula holds."""
    if isinstance(formula, Not):
        name = only_name(formula.atom)
        if name is not None:
            yield name
    else:
        for part in formula.parts:
            yield from find_names_to_violate(part)
