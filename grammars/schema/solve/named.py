"""Which names the formulas over an object speak of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..read.formula import Formula
from .outcomes import Goal


def only_name(atom: Formula) -> str | None:
    """The declared name that an atom is about, if it is one."""
    if atom.kind != "atom":
        return None
    if atom.payload[0] == "has":
        name: str = atom.payload[1]
        return name
    if atom.payload[0] == "every":
        names = atom.payload[1]
        if names.kind == "atom" and names.payload[0] == "in" and len(names.payload[1]) == 1:
            return next(iter(names.payload[1]))  # type: ignore[no-any-return]
    return None


def declared_names(goal: Goal) -> list[str]:
    """Every name that is listed: those of properties in the order of declaration, then others."""
    said = [atom for formula in goal for atom in formula.atoms()]
    properties = [only_name(atom) for atom in said if atom.payload[0] == "every"]
    declared = [name for name in properties if name is not None]
    return list(dict.fromkeys([*declared, *(name for atom in said for name in _listed(atom))]))


def _listed(atom: Formula) -> Iterable[str]:
    if atom.payload[0] == "has":
        return (atom.payload[1],)
    lists = atom.payload[1].atoms() if atom.payload[0] == "every" else ()
    return [name for each in lists if each.payload[0] == "in" for name in sorted(each.payload[1])]


def names_to_violate(formula: Formula) -> Iterator[str]:
    """Declared names of which the formula may want to see what is not allowed to all."""
    if formula.kind == "not":
        name = only_name(formula.parts[0])
        if name is not None:
            yield name
    else:
        for part in formula.parts:
            yield from names_to_violate(part)
