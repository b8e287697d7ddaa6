"""Makes formulas, and interns and simplifies them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from operator import is_
from typing import Any, TypeVar

from .formula import (
    EVERY_KIND,
    EVERY_TYPE,
    LIST,
    STRING,
    And,
    Atom,
    Fact,
    Formula,
    HasType,
    Not,
    Numbers,
    Or,
    Strings,
)

Made = TypeVar("Made", bound=Formula)


class Formulas:
    """Makes formulas. They must not be combined with another maker's."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}
        self._conjunctions: dict[tuple[Formula, ...], Formula] = {}
        self._disjunctions: dict[tuple[Formula, ...], Formula] = {}
        self.true = self.types(EVERY_TYPE)
        self.false = self.types(0)

    def dissolve(self) -> None:
        """Breaks the cycles in which formulas refer to each other, so that they are freed at once."""
        for formula in self._known.values():
            formula.cache.clear()

    def types(self, mask: int) -> Formula:
        return self._intern((HasType, mask), lambda number: HasType(number, mask))

    def atom(self, fact: Fact) -> Formula:
        match fact:
            case Strings(values) if not values:
                return self.types(EVERY_TYPE & ~STRING)
        return self._intern(fact, lambda number: Atom(number, fact))

    def negation(self, formula: Formula) -> Formula:
        known = formula.cache.get("not")
        if known is None:
            known = formula.cache["not"] = self._negation(formula)
        return known

    def _negation(self, formula: Formula) -> Formula:
        match formula:
            case Atom():
                return self._intern((Not, formula), lambda number: Not(number, formula))
            case Not(atom):
                return atom
            case And(parts):
                return self.any_of(self.negation(part) for part in parts)
            case Or(parts):
                return self.all_of(self.negation(part) for part in parts)
        return self.types(EVERY_TYPE & ~formula.possible)

    def all_of(self, formulas: Iterable[Formula]) -> Formula:
        joined = tuple(formulas)
        known = self._conjunctions.get(joined)
        if known is None:
            known = self._conjunctions[joined] = self._all_of(joined)
        return known

    def _all_of(self, formulas: Iterable[Formula]) -> Formula:
        parts: dict[Formula, None] = {}
        mask = EVERY_TYPE
        for formula in formulas:
            for part in formula.conjuncts():
                if part.kinds:
                    parts[part] = None
                else:
                    mask &= part.possible
        if not mask:
            return self.false
        if len(parts) < 2 and mask == EVERY_TYPE:
            return next(iter(parts), self.true)
        if mask != EVERY_TYPE:
            restricted = [self.restrict(part, mask) for part in parts]
            if restricted != list(parts):
                return self.all_of([self.types(mask), *restricted])
        if _contradict_each_other(parts):
            return self.false
        if len([part for part in parts if part.kinds == LIST and isinstance(part, (Atom, Not))]) > 1:
            return self.all_of([self.types(mask), *_intersect(self, parts)])
        kept = [*parts] if mask == EVERY_TYPE else [self.types(mask), *parts]
        return self._join(And, kept, self.true)

    def any_of(self, formulas: Iterable[Formula]) -> Formula:
        joined = tuple(formulas)
        known = self._disjunctions.get(joined)
        if known is None:
            known = self._disjunctions[joined] = self._any_of(joined)
        return known

    def _any_of(self, formulas: Iterable[Formula]) -> Formula:
        parts: dict[Formula, None] = {}
        mask = 0
        for formula in formulas:
            for part in formula.parts if isinstance(formula, Or) else (formula,):
                if part.kinds:
                    parts[part] = None
                else:
                    mask |= part.possible
        if mask == EVERY_TYPE:
            return self.true
        if len(parts) < 2 and (not mask or not parts):
            return next(iter(parts), self.types(mask))
        if _contradict_each_other(parts):
            return self.true
        united = _unite(self, parts)
        if united is not None:
            return self.any_of([self.types(mask), *united])
        kept = [part for part in parts if not _is_implied(part, mask, parts)]
        kept = [self.types(mask), *kept] if mask else kept
        return self._join(Or, kept, self.false)

    def restrict(self, formula: Formula, mask: int) -> Formula:
        """A formula that is equal for values of these types, and may differ for others."""
        if formula.certain & mask == mask:
            return self.true
        if not formula.possible & mask:
            return self.false
        if not isinstance(formula, (And, Or)):
            return formula
        known = formula.cache.get(mask)
        if known is None:
            known = formula.cache[mask] = self._restrict(formula, mask)
        return known

    def _restrict(self, formula: Formula, mask: int) -> Formula:
        joined = self.with_parts(formula, [self.restrict(part, mask) for part in formula.parts])
        return joined if joined is formula else self.restrict(joined, mask)

    def rewrite(
        self, formula: Formula, key: Any, change: Callable[[Atom], Formula], kinds: int = EVERY_KIND
    ) -> Formula:
        """Replaces each atom of these kinds by `change(atom)`. `key` names the change."""
        if not formula.kinds & kinds:
            return formula
        known = formula.cache.get(key)
        if known is None:
            known = formula.cache[key] = self._rewrite(formula, key, change, kinds)
        return known

    def _rewrite(self, formula: Formula, key: Any, change: Callable[[Atom], Formula], kinds: int) -> Formula:
        if isinstance(formula, Atom):
            return change(formula)
        parts = [
            self.rewrite(part, key, change, kinds) if part.kinds & kinds else part for part in formula.parts
        ]
        return self.with_parts(formula, parts)

    def with_parts(self, formula: Formula, parts: list[Formula]) -> Formula:
        """The formula with these parts instead of its own."""
        if all(map(is_, parts, formula.parts)):
            return formula
        if isinstance(formula, Not):
            return self.negation(parts[0])
        return self.all_of(parts) if isinstance(formula, And) else self.any_of(parts)

    def _join(self, kind: type[And] | type[Or], parts: list[Formula], empty: Formula) -> Formula:
        if len(parts) < 2:
            return parts[0] if parts else empty
        key = tuple(parts)
        return self._intern((kind, key), lambda number: kind(number, key))

    def _intern(self, key: Any, make: Callable[[int], Made]) -> Made:
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = make(len(self._known))
        made: Made = known
        return made


def _is_implied(part: Formula, mask: int, others: Mapping[Formula, None]) -> bool:
    """Whether a conjunction implies one of the other alternatives, and so can be left out."""
    if not isinstance(part, And):
        return False
    return any(
        conjunct in others or (isinstance(conjunct, HasType) and conjunct.types & ~mask == 0)
        for conjunct in part.parts
    )


def _contradict_each_other(parts: Mapping[Formula, None]) -> bool:
    """Whether one formula is the negation of another."""
    return any(part.atom in parts for part in parts if isinstance(part, Not))


def _intersect(formulas: Formulas, parts: Iterable[Formula]) -> list[Formula]:
    """The conjunction's parts, with all its lists of strings intersected."""
    allowed: frozenset[str] | None = None
    excluded: frozenset[str] = frozenset()
    kept: list[Formula] = []
    for part in parts:
        match part:
            case Atom(Strings(values)):
                allowed = values if allowed is None else allowed & values
            case Not(Atom(Strings(values))):
                excluded |= values
            case _:
                kept.append(part)
    if allowed is None:
        return [*kept, formulas.negation(formulas.atom(Strings(excluded)))]
    left = formulas.atom(Strings(allowed - excluded))
    return [*kept, formulas.types(STRING), left] if excluded else [*kept, left]


def _unite(formulas: Formulas, parts: Iterable[Formula]) -> list[Formula] | None:
    """The alternatives, with two or more lists of strings, or of numbers, united; None if there are no
    two."""
    strings: list[Strings] = []
    numbers: list[Numbers] = []
    for part in parts:
        match part:
            case Atom(Strings() as fact):
                strings.append(fact)
            case Atom(Numbers() as fact):
                numbers.append(fact)
    united: Fact
    if len(strings) > 1:
        united = Strings(frozenset[str]().union(*(fact.values for fact in strings)))
    elif len(numbers) > 1:
        values = frozenset[Fraction]().union(*(fact.values for fact in numbers))
        united = Numbers(values, frozenset[str]().union(*(fact.texts for fact in numbers)))
    else:
        return None
    kind = type(united)
    rest = [part for part in parts if not (isinstance(part, Atom) and isinstance(part.fact, kind))]
    return [*rest, formulas.atom(united)]
