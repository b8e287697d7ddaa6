"""The constraints of a JSON schema on one value, as boolean formulas over facts.

A fact constrains values of some JSON types and holds for all others, as JSON schema's keywords do.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import reduce
from operator import and_, or_
from typing import Any, ClassVar

import msgspec

NULL, BOOLEAN, NUMBER, STRING, OBJECT, ARRAY = 1, 2, 4, 8, 16, 32
EVERY_TYPE = 63
SCHEMA, CHILD, LIST, OTHER = 1, 2, 4, 8
"""kinds of facts: an unread subschema, a child's value, a list of strings, any other fact"""
EVERY_KIND = 15


class Fact(msgspec.Struct, frozen=True):
    """One fact about a value. `types`: the JSON types that it constrains."""

    types: ClassVar[int] = EVERY_TYPE
    kind: ClassVar[int] = OTHER


class Subschema(Fact, frozen=True):
    """The value satisfies the subschema with this number, which is read when it is needed."""

    kind: ClassVar[int] = SCHEMA
    number: int


class IsTrue(Fact, frozen=True):
    types: ClassVar[int] = BOOLEAN


class Integer(Fact, frozen=True):
    types: ClassVar[int] = NUMBER


class AtLeast(Fact, frozen=True):
    types: ClassVar[int] = NUMBER
    bound: Fraction


class MoreThan(Fact, frozen=True):
    types: ClassVar[int] = NUMBER
    bound: Fraction


class MultipleOf(Fact, frozen=True):
    types: ClassVar[int] = NUMBER
    divisor: Fraction


class Numbers(Fact, frozen=True):
    """The number is one of these. `texts`: the forms in which the schema writes them."""

    types: ClassVar[int] = NUMBER
    values: frozenset[Fraction]
    texts: frozenset[str]


class Strings(Fact, frozen=True):
    """The string is one of these."""

    types: ClassVar[int] = STRING
    kind: ClassVar[int] = LIST
    values: frozenset[str]


class Pattern(Fact, frozen=True):
    """The regex matches somewhere in the string."""

    types: ClassVar[int] = STRING
    regex: str


class Format(Fact, frozen=True):
    types: ClassVar[int] = STRING
    name: str


class MinLength(Fact, frozen=True):
    """The string has at least this number of code points."""

    types: ClassVar[int] = STRING
    count: int


class MinItems(Fact, frozen=True):
    types: ClassVar[int] = ARRAY
    count: int


class Items(Fact, frozen=True):
    """The items from position `first` up to `end` (None: all later ones) satisfy `child`."""

    types: ClassVar[int] = ARRAY
    first: int
    end: int | None
    child: Formula


class Contains(Fact, frozen=True):
    """At least `count` items satisfy `child`."""

    types: ClassVar[int] = ARRAY
    child: Formula
    count: int


class Distinct(Fact, frozen=True):
    """Each item satisfies one of these formulas, each of which allows one value; no two items satisfy the
    same."""

    types: ClassVar[int] = ARRAY
    values: tuple[Formula, ...]


class Has(Fact, frozen=True):
    """The object has a member of this name."""

    types: ClassVar[int] = OBJECT
    name: str


class Members(Fact, frozen=True):
    """All members whose names satisfy `names` have values that satisfy `child`."""

    types: ClassVar[int] = OBJECT
    names: Formula
    child: Formula


class MinMembers(Fact, frozen=True):
    types: ClassVar[int] = OBJECT
    count: int


class ChildFits(Fact, frozen=True):
    """The value of the next item or member satisfies `child`."""

    kind: ClassVar[int] = CHILD
    child: Formula


class ItemFits(ChildFits, frozen=True):
    types: ClassVar[int] = ARRAY


class MemberFits(ChildFits, frozen=True):
    types: ClassVar[int] = OBJECT


class Formula:
    """A boolean formula. Equal formulas of one maker are identical.

    A formula holds for no value of a type outside of `possible`, and for every value of a type in `certain`.
    `kinds` has a bit for each kind of its facts.
    """

    __slots__ = ("cache", "certain", "kinds", "number", "parts", "possible")

    def __init__(
        self, number: int, parts: tuple[Formula, ...] = (), *, possible: int, certain: int, kinds: int = 0
    ) -> None:
        self.number = number
        self.parts = parts
        self.possible = possible
        self.certain = certain
        self.kinds = kinds
        self.cache: dict[Any, Formula] = {}

    def atoms(self) -> Iterator[Atom]:
        """Every atom, in the order in which they are written."""
        for part in self.parts:
            yield from part.atoms()

    def conjuncts(self) -> tuple[Formula, ...]:
        return (self,)


class HasType(Formula):
    """The value is of one of these types. With all types the formula is always true, with none never."""

    __slots__ = ("types",)
    __match_args__ = ("types",)

    def __init__(self, number: int, types: int) -> None:
        super().__init__(number, possible=types, certain=types)
        self.types = types


class Atom(Formula):
    __slots__ = ("fact",)
    __match_args__ = ("fact",)

    def __init__(self, number: int, fact: Fact) -> None:
        super().__init__(number, possible=EVERY_TYPE, certain=EVERY_TYPE & ~fact.types, kinds=fact.kind)
        self.fact = fact

    def atoms(self) -> Iterator[Atom]:
        yield self


class Not(Formula):
    """The atom's fact does not hold, and the value is of a type that the fact constrains."""

    __slots__ = ("atom",)
    __match_args__ = ("atom",)

    def __init__(self, number: int, atom: Atom) -> None:
        super().__init__(number, (atom,), possible=atom.fact.types, certain=0, kinds=atom.kinds)
        self.atom = atom


class And(Formula):
    __slots__ = ()
    __match_args__ = ("parts",)

    def __init__(self, number: int, parts: tuple[Formula, ...]) -> None:
        possible = reduce(and_, (part.possible for part in parts))
        certain = reduce(and_, (part.certain for part in parts))
        super().__init__(number, parts, possible=possible, certain=certain, kinds=_kinds_of(parts))

    def conjuncts(self) -> tuple[Formula, ...]:
        return self.parts


class Or(Formula):
    __slots__ = ()
    __match_args__ = ("parts",)

    def __init__(self, number: int, parts: tuple[Formula, ...]) -> None:
        possible = reduce(or_, (part.possible for part in parts))
        certain = reduce(or_, (part.certain for part in parts))
        super().__init__(number, parts, possible=possible, certain=certain, kinds=_kinds_of(parts))


def _kinds_of(parts: tuple[Formula, ...]) -> int:
    return reduce(or_, (part.kinds for part in parts))


def formulas_in(fact: Fact) -> tuple[Formula, ...]:
    """The formulas over members, items or names inside a fact."""
    match fact:
        case Items(child=child) | Contains(child=child) | ChildFits(child):
            return (child,)
        case Members(names, child):
            return names, child
        case Distinct(values):
            return values
    return ()
