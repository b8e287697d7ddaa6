"""The outcomes of a member: conditions on its value, and the rest of the goal after each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ...errors import TooLargeError
from ..read.document import SchemaDocument
from ..read.formula import CHILD, Atom, ChildFits, Formula
from ..read.formulas import Formulas

MAX_OUTCOMES = 64
Goal: TypeAlias = tuple[Formula, ...]


def outcomes(document: SchemaDocument, goal: Goal) -> list[tuple[Formula, Goal]]:
    """For each outcome of the `ChildFits` facts, a condition on the child and the rest of the goal.

    The first condition that holds decides.
    """
    search = _OutcomeSearch(document)
    is_exhaustive = search.split(goal, document.formulas.true, 0)
    conditions = list(search.found.values())
    if is_exhaustive and conditions:
        conditions[-1] = [document.formulas.true]
    any_of = document.formulas.any_of
    return [(any_of(each), left) for left, each in zip(search.found, conditions, strict=True)]


def decide(make: Formulas, goal: Sequence[Formula]) -> Goal:
    """Replaces every formula after a true one with `false`, because only the first true formula counts."""
    if make.true not in goal[:-1]:
        return tuple(goal)
    first = goal.index(make.true)
    return *goal[: first + 1], *[make.false] * (len(goal) - first - 1)


class _OutcomeSearch:
    def __init__(self, document: SchemaDocument) -> None:
        self._document = document
        self._make = document.formulas
        self.found: dict[Goal, list[Formula]] = {}
        """conditions by the rest of the goal"""

    def split(self, goal: Goal, condition: Formula, depth: int) -> bool:
        """Whether every child that satisfies the condition leaves a goal that can be satisfied."""
        make = self._make
        if condition is make.false:
            return True
        if goal.count(make.false) == len(goal):
            return False
        unknown = next((formula for formula in goal if formula.kinds & CHILD), None)
        if unknown is None:
            self.found.setdefault(decide(make, goal), []).append(condition)
            if len(self.found) > MAX_OUTCOMES or depth > MAX_OUTCOMES:
                raise TooLargeError(f"more than {MAX_OUTCOMES} outcomes of a member")
            return True
        needed = _needed_children(goal[0]) if len(goal) == 1 else []
        if needed:
            self._split_needed(goal[0], needed, condition, depth)
            return False
        return self._split_by(_first_child(unknown), goal, condition, depth)

    def _split_needed(self, formula: Formula, needed: list[Formula], condition: Formula, depth: int) -> None:
        for child in needed:
            formula = self._assume(formula, child, True)
        said = self._make.all_of([condition, *map(self._document.expand, needed)])
        self.split((formula,), said, depth)

    def _split_by(self, child: Formula, goal: Goal, condition: Formula, depth: int) -> bool:
        make = self._make
        opened = self._document.expand(child)
        is_exhaustive = True
        for holds, said in ((True, opened), (False, make.negation(opened))):
            left = tuple([self._assume(formula, child, holds) for formula in goal])
            is_exhaustive &= self.split(left, make.all_of([condition, said]), depth + 1)
        return is_exhaustive

    def _assume(self, formula: Formula, child: Formula, holds: bool) -> Formula:
        said = self._make.true if holds else self._make.false
        return self._make.rewrite(
            formula,
            ("assumed", child.number, holds),
            lambda atom: said if _child_of(atom) is child else atom,
            CHILD,
        )


def _needed_children(formula: Formula) -> list[Formula]:
    """The formulas that the child must satisfy in any case."""
    atoms = (part for part in formula.conjuncts() if isinstance(part, Atom))
    return [_child_of(atom) for atom in atoms if atom.kinds == CHILD]


def _first_child(formula: Formula) -> Formula:
    """The child formula of the first `ChildFits` atom."""
    while not isinstance(formula, Atom):
        formula = next(part for part in formula.parts if part.kinds & CHILD)
    return _child_of(formula)


def _child_of(atom: Atom) -> Formula:
    assert isinstance(atom.fact, ChildFits)
    return atom.fact.child
