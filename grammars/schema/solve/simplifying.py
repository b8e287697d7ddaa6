"""Simplifies formulas: factors out common conjuncts of alternatives, and applies the facts around them."""

from __future__ import annotations

from collections.abc import Container, Iterable

from ..read.formula import And, Atom, Formula, Not, Or
from ..read.formulas import Formulas


def simplify(make: Formulas, formula: Formula) -> Formula:
    """An equal formula with as few facts inside alternatives as possible."""
    if not isinstance(formula, (And, Or)):
        return formula
    known = formula.cache.get("simplified")
    if known is None:
        known = formula.cache["simplified"] = _simplify(make, formula)
    return known


def _simplify(make: Formulas, formula: Formula) -> Formula:
    joined = make.with_parts(formula, [simplify(make, part) for part in formula.parts])
    if joined is not formula:
        return simplify(make, joined)
    changed = _factor(make, joined) if isinstance(joined, Or) else _settle(make, joined)
    return joined if changed is joined else simplify(make, changed)


def _factor(make: Formulas, alternatives: Formula) -> Formula:
    """The alternatives with their common conjuncts factored out."""
    first, *others = (dict.fromkeys(part.conjuncts()) for part in alternatives.parts)
    shared = [part for part in first if all(part in other for other in others)]
    if not shared:
        return alternatives
    rest = make.any_of(_without(make, part, shared) for part in alternatives.parts)
    return make.all_of([*shared, rest])


def _settle(make: Formulas, conjunction: Formula) -> Formula:
    """The conjunction, with its alternatives simplified by its other facts."""
    facts = {part for part in conjunction.parts if not isinstance(part, Or)}
    return make.with_parts(
        conjunction,
        [_under_facts(make, part, facts) if isinstance(part, Or) else part for part in conjunction.parts],
    )


def _under_facts(make: Formulas, alternatives: Formula, facts: set[Formula]) -> Formula:
    possible = [part for part in alternatives.parts if not _is_refuted(make, part.conjuncts(), facts)]
    return make.any_of(_without(make, part, facts) for part in possible)


def _is_refuted(make: Formulas, said: Iterable[Formula], facts: set[Formula]) -> bool:
    return any(isinstance(part, (Atom, Not)) and make.negation(part) in facts for part in said)


def _without(make: Formulas, formula: Formula, known: Container[Formula]) -> Formula:
    left = [part for part in formula.conjuncts() if part not in known]
    return formula if len(left) == len(formula.conjuncts()) else make.all_of(left)
