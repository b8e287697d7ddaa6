"""Boolean formulas over what a JSON schema says of one value, interned so that equal ones are identical.

An atom speaks of values of one JSON type and holds for all others, as JSON schema's keywords do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import is_
from typing import Any, Literal, TypeAlias

NULL, BOOLEAN, NUMBER, STRING, OBJECT, ARRAY = 1, 2, 4, 8, 16, 32
EVERY_TYPE = 63

Kind = Literal["true", "false", "types", "atom", "not", "and", "or"]
Payload: TypeAlias = tuple[Any, ...]
SCHEMA, CHILD, LIST, OTHER = 1, 2, 4, 8
EVERY_ATOM = 15
_BIT_OF_ATOM = {"schema": SCHEMA, "child": CHILD, "in": LIST}


class Formula:
    """`payload` is an atom's content, its name first; `types` what it speaks of, or a set of types.

    It holds for no value of a type that is not in `possible`, for every one of those in `certain`. `says` has
    a bit for each kind of its atoms.
    """

    __slots__ = ("cache", "certain", "kind", "number", "parts", "payload", "possible", "says", "types")

    def __init__(
        self, number: int, kind: Kind, types: int, payload: Payload, parts: tuple[Formula, ...]
    ) -> None:
        self.number = number
        self.kind = kind
        self.types = types
        self.payload = payload
        self.parts = parts
        self.cache: dict[Any, Formula] = {}
        self.possible, self.certain = types, types if kind == "types" else 0
        self.says = _BIT_OF_ATOM.get(payload[0], OTHER) if kind == "atom" else 0
        if kind in ("true", "atom"):
            self.possible, self.certain = EVERY_TYPE, EVERY_TYPE & ~types
        elif kind == "and":
            self.possible = self.certain = EVERY_TYPE
        for part in parts:
            self.says |= part.says
            if kind == "and":
                self.possible &= part.possible
                self.certain &= part.certain
            elif kind == "or":
                self.possible |= part.possible
                self.certain |= part.certain

    def atoms(self) -> Iterator[Formula]:
        """Every atom, in the order of writing."""
        if self.kind == "atom":
            yield self
        for part in self.parts:
            yield from part.atoms()

    def conjuncts(self) -> tuple[Formula, ...]:
        return self.parts if self.kind == "and" else (self,)


class Formulas:
    """Makes formulas. Those of different makers must not meet."""

    def __init__(self) -> None:
        self._known: dict[Any, Formula] = {}
        self._conjunctions: dict[tuple[Formula, ...], Formula] = {}
        self._disjunctions: dict[tuple[Formula, ...], Formula] = {}
        self.true = self._interned("true", 0, ("true",), ())
        self.false = self._interned("false", 0, ("false",), ())

    def dissolve(self) -> None:
        """Formulas refer to each other in circles: cut, they are gone with the last reference to them."""
        for formula in self._known.values():
            formula.cache.clear()

    def types(self, mask: int) -> Formula:
        if mask & EVERY_TYPE == EVERY_TYPE:
            return self.true
        return self._interned("types", mask, ("types", mask), ()) if mask else self.false

    def atom(self, types: int, *payload: Any) -> Formula:
        if payload[0] == "in" and not payload[1]:
            return self.types(EVERY_TYPE & ~types)
        return self._interned("atom", types, payload, ())

    def negation(self, formula: Formula) -> Formula:
        known = formula.cache.get("not")
        if known is None:
            known = formula.cache["not"] = self._negation(formula)
        return known

    def _negation(self, formula: Formula) -> Formula:
        kind = formula.kind
        if kind == "true":
            return self.false
        if kind == "false":
            return self.true
        if kind == "types":
            return self.types(EVERY_TYPE & ~formula.types)
        if kind == "not":
            return formula.parts[0]
        if kind == "and":
            return self.any_of(self.negation(part) for part in formula.parts)
        if kind == "or":
            return self.all_of(self.negation(part) for part in formula.parts)
        return self._interned("not", formula.types, (), (formula,))

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
            for part in formula.parts if formula.kind == "and" else (formula,):
                if part.says:
                    parts[part] = None
                else:
                    mask &= part.possible
        if not mask:
            return self.false
        if len(parts) < 2 and mask == EVERY_TYPE:
            return next(iter(parts), self.true)
        if mask != EVERY_TYPE:
            restricted = [self.restricted(part, mask) for part in parts]
            if restricted != list(parts):
                return self.all_of([self.types(mask), *restricted])
        if _contradict_each_other(parts):
            return self.false
        if len([part for part in parts if part.says == LIST and part.kind in ("atom", "not")]) > 1:
            return self.all_of([self.types(mask), *_intersected(self, parts)])
        kept = [*parts] if mask == EVERY_TYPE else [self.types(mask), *parts]
        return self._joined("and", kept, self.true)

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
            for part in formula.parts if formula.kind == "or" else (formula,):
                if part.says:
                    parts[part] = None
                else:
                    mask |= part.possible
        if mask == EVERY_TYPE:
            return self.true
        if len(parts) < 2 and (not mask or not parts):
            return next(iter(parts), self.types(mask))
        if _contradict_each_other(parts):
            return self.true
        listed = [part for part in parts if part.kind == "atom" and part.payload[0] in ("in", "numbers")]
        for name in ("in", "numbers"):
            same = [part for part in listed if part.payload[0] == name]
            if len(same) > 1:
                together = frozenset().union(*(part.payload[1] for part in same))
                rest = [part for part in parts if part not in same]
                return self.any_of([self.types(mask), *rest, self.atom(same[0].types, name, together)])
        kept = [part for part in parts if not _is_implied(part, mask, parts)]
        kept = [self.types(mask), *kept] if mask else kept
        return self._joined("or", kept, self.false)

    def restricted(self, formula: Formula, mask: int) -> Formula:
        """What it says of values of these types: the same for them, anything for others."""
        if formula.certain & mask == mask:
            return self.true
        if not formula.possible & mask:
            return self.false
        if formula.kind not in ("and", "or"):
            return formula
        known = formula.cache.get(mask)
        if known is None:
            known = formula.cache[mask] = self._restricted(formula, mask)
        return known

    def _restricted(self, formula: Formula, mask: int) -> Formula:
        joined = self.with_parts(formula, [self.restricted(part, mask) for part in formula.parts])
        return joined if joined is formula else self.restricted(joined, mask)

    def rewritten(
        self, formula: Formula, key: Any, change: Callable[[Formula], Formula], about: int = EVERY_ATOM
    ) -> Formula:
        """Every atom replaced by `change(atom)`, which `key` stands for; only atoms of the kinds `about`."""
        if not formula.says & about:
            return formula
        known = formula.cache.get(key)
        if known is None:
            known = formula.cache[key] = self._rewritten(formula, key, change, about)
        return known

    def _rewritten(
        self, formula: Formula, key: Any, change: Callable[[Formula], Formula], about: int
    ) -> Formula:
        if formula.kind == "atom":
            return change(formula)
        parts = [
            self.rewritten(part, key, change, about) if part.says & about else part for part in formula.parts
        ]
        return self.with_parts(formula, parts)

    def with_parts(self, formula: Formula, parts: list[Formula]) -> Formula:
        """The formula with others for its parts."""
        if all(map(is_, parts, formula.parts)):
            return formula
        if formula.kind == "not":
            return self.negation(parts[0])
        return self.all_of(parts) if formula.kind == "and" else self.any_of(parts)

    def _joined(self, kind: Literal["and", "or"], parts: list[Formula], empty: Formula) -> Formula:
        if len(parts) < 2:
            return parts[0] if parts else empty
        return self._interned(kind, 0, (), tuple(parts))

    def _interned(self, kind: Kind, types: int, payload: Payload, parts: tuple[Formula, ...]) -> Formula:
        key = (kind, types, payload, parts)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = Formula(len(self._known), kind, types, payload, parts)
        return known


def _is_implied(part: Formula, mask: int, others: dict[Formula, None]) -> bool:
    """Whether a conjunction says no more than one of the alternatives beside it."""
    if part.kind != "and":
        return False
    return any(
        conjunct in others or (conjunct.kind == "types" and conjunct.types & ~mask == 0)
        for conjunct in part.parts
    )


def _contradict_each_other(parts: Mapping[Formula, None]) -> bool:
    """Whether one is the negation of another."""
    return any(part.parts[0] in parts for part in parts if part.kind == "not")


def _intersected(formulas: Formulas, parts: Iterable[Formula]) -> list[Formula]:
    """Lists of strings in a conjunction as one list."""
    allowed: frozenset[str] | None = None
    excluded: frozenset[str] = frozenset()
    kept: list[Formula] = []
    for part in parts:
        if part.says != LIST or part.kind not in ("atom", "not"):
            kept.append(part)
        elif part.kind == "not":
            excluded |= part.parts[0].payload[1]
        else:
            allowed = part.payload[1] if allowed is None else allowed & part.payload[1]
    if allowed is None:
        return [*kept, formulas.negation(formulas.atom(STRING, "in", excluded))]
    left = formulas.atom(STRING, "in", allowed - excluded)
    return [*kept, formulas.types(STRING), left] if excluded else [*kept, left]
