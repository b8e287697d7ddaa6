"""Makes the automata of strings and numbers that satisfy formulas, and caches them across schemas."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from ...machine.stack_automaton import TAIL
from ...regex.dfa import (
    ANYTHING,
    NOTHING,
    REJECT,
    Dfa,
    combine,
    complement,
    intersect,
    minimize,
    unite,
)
from ...regex.regex_dfa import compile_search
from ..lexical.code_points import Escapes
from ..lexical.counted import can_count, shortest
from ..lexical.formats import FORMATS
from ..lexical.json_string_bytes import Block, ascii_block, bounded_block, inlined_block, string_block
from ..lexical.numbers import compare, multiples, number_texts, one_of
from ..lexical.texts import MAX_UNITS, at_least, labelled_literals, literals
from ..read.formula import (
    EVERY_TYPE,
    And,
    AtLeast,
    Atom,
    Fact,
    Format,
    Formula,
    HasType,
    Integer,
    MinLength,
    MoreThan,
    MultipleOf,
    Not,
    Numbers,
    Or,
    Pattern,
    Strings,
)

MAX_JOINT_ATOMS = 8
CACHED = 500
Content: TypeAlias = tuple[Any, ...]


class Scalars:
    """Automata for formulas over strings and numbers, cached by content because schemas repeat each other."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[Content, Block | None] = OrderedDict()
        self._dfas: OrderedDict[Content, Dfa] = OrderedDict()

    def string_block(self, formulas: Sequence[Formula]) -> Block | None:
        """The block after an opening quote. It labels a text with the index of its first true formula."""
        free = all(isinstance(atom.fact, MinLength) for atom in _atoms(formulas))
        escapes: Escapes = "any" if free else "usual"
        key = ("string", *map(content, formulas))
        bounds = find_counted_lengths(formulas)
        if bounds is not None:
            return self._remember(key, lambda: bounded_block(*bounds))
        counted = self._find_counted(formulas)
        if counted is not None:
            return self._remember(key, lambda: string_block(counted[0], escapes, counted[1]))
        return self._remember(key, lambda: string_block(self.string_dfa(formulas), escapes))

    def string_labels(self, formulas: Sequence[Formula]) -> set[int]:
        """The indices of the formulas that some string satisfies first."""
        if find_counted_lengths(formulas) is not None:
            return {0}
        counted = self._find_counted(formulas)
        if counted is not None:
            dfa, most = counted
            return {0} if (dfa.labels >= 0).any() and shortest(dfa) <= most else set()
        return {int(label) for label in self.string_dfa(formulas).labels} - {REJECT}

    def _find_counted(self, formulas: Sequence[Formula]) -> tuple[Dfa, int] | None:
        """The automaton of one formula without its maximum length, and that length, if it is counted on the
        stack."""
        if len(formulas) > 1:
            return None
        rest, most = _split_maximum(formulas[0].conjuncts())
        if most is None or all(isinstance(atom.fact, MinLength) for atom in _atoms(rest)):
            return None
        dfa = self.string_dfa(rest[:1] if len(rest) == 1 else (And(0, rest),))
        return (dfa, most) if can_count(dfa, most) else None

    def name_block(self, dfa: Callable[[], Dfa], key: Content, *, is_shared: bool) -> Block | None:
        """The block of property names. `key` names the automaton; if the nodes of a code point are shared,
        the stack is needed."""
        if is_shared:
            return self._remember(("name", *key), lambda: string_block(dfa(), "lower"))
        return self._remember(("whole name", *key), lambda: inlined_block(dfa(), "lower"))

    def number_block(self, formulas: Sequence[Formula]) -> Block | None:
        key = ("number", *map(content, formulas))
        return self._remember(key, lambda: ascii_block(self.number_dfa(formulas)))

    def string_dfa(self, formulas: Sequence[Formula]) -> Dfa:
        """The automaton that labels a text with the index of the formula that it satisfies."""
        key = ("string", *map(content, formulas))
        known = self._dfas.get(key)
        if known is None and _lists_some(formulas):
            known = self._dfas[key] = self._with_lists(formulas)
        return known or self._label(key, formulas, _string_atom, lambda _: (ANYTHING, None))

    def _with_lists(self, formulas: Sequence[Formula]) -> Dfa:
        """Makes the automaton of `string_dfa`. Decides listed strings one by one, and others by the formulas
        without lists."""
        facts = [atom.fact for atom in _atoms(formulas)]
        listed = frozenset[str]().union(*(fact.values for fact in facts if isinstance(fact, Strings)))
        labels = {text: _label_of(formulas, partial(_string_satisfies, text)) for text in listed}
        if all(isinstance(fact, Strings) for fact in facts):
            return labelled_literals(labels, _label_of(formulas, lambda _: False))
        others = self.string_dfa([_without_lists(formula) for formula in formulas])
        unlisted = len(formulas) + 1
        exceptions = labelled_literals({text: 1 + label for text, label in labels.items()}, unlisted)
        return combine(exceptions, others, lambda own, other: other if own == unlisted else own - 1)

    def number_labels(self, formulas: Sequence[Formula]) -> set[int]:
        """The indices of the formulas that some number satisfies first."""
        return {int(label) for label in self.number_dfa(formulas).labels} - {REJECT}

    def number_dfa(self, formulas: Sequence[Formula]) -> Dfa:
        return self._label(("number", *map(content, formulas)), formulas, _number_atom, _number_formulas)

    def _label(
        self,
        key: Content,
        formulas: Sequence[Formula],
        atom: Callable[[Fact], Dfa],
        whole: Callable[[Sequence[Formula]], tuple[Dfa, Dfa | None]],
    ) -> Dfa:
        known = self._dfas.get(key)
        if known is None:
            universe, known = whole(formulas)
            if known is None:
                known = (
                    _build_jointly(formulas, atom)
                    if _share_atoms(formulas)
                    else _build_separately(formulas, atom)
                )
                known = known if universe is ANYTHING else intersect(known, universe)
            self._dfas[key] = known
            _trim(self._dfas)
        return known

    def _remember(self, key: Content, build: Callable[[], Block | None]) -> Block | None:
        if key not in self._blocks:
            self._blocks[key] = build()
            _trim(self._blocks)
        return self._blocks[key]


def _share_atoms(formulas: Sequence[Formula]) -> bool:
    """Whether the formulas are made of the same few atoms."""
    atoms = [atom for formula in formulas for atom in formula.atoms()]
    distinct = len(set(atoms))
    return len(formulas) > 1 and distinct <= MAX_JOINT_ATOMS and len(atoms) >= 2 * distinct


def _build_jointly(formulas: Sequence[Formula], atom: Callable[[Fact], Dfa]) -> Dfa:
    """Computes the product of all atoms, each a bit of the label, and from it the label of the formulas."""
    atoms = list(dict.fromkeys(atom for formula in formulas for atom in formula.atoms()))
    known = ANYTHING
    for each in atoms:
        known = combine(known, atom(each.fact), lambda bits, now: bits << 1 | (now >= 0))
    place = {each: len(atoms) - 1 - number for number, each in enumerate(atoms)}
    every_label = range(1 << len(atoms))
    labels = [_label_of(formulas, partial(_has_bit, place, bits)) for bits in every_label]
    of_state = np.array(labels, np.int32)[known.labels]
    return minimize(Dfa(known.cuts, known.class_of_cut, known.transitions, of_state))


def _has_bit(place: Mapping[Atom, int], bits: int, atom: Atom) -> bool:
    return bool(bits >> place[atom] & 1)


def _build_separately(formulas: Sequence[Formula], atom: Callable[[Fact], Dfa]) -> Dfa:
    known = NOTHING
    for number, formula in enumerate(formulas):
        known = _with_label(known, _build(formula, atom), number)
    return known


def find_counted_lengths(formulas: Sequence[Formula]) -> tuple[int, int] | None:
    """The minimum and maximum length, if the formulas bound only the length and the maximum is large."""
    least, most = 0, 0
    if len(formulas) > 1:
        return None
    for part in formulas[0].conjuncts():
        match part:
            case Atom(MinLength(count)):
                least = max(least, count)
            case Not(Atom(MinLength(count))):
                most = min(most or count - 1, count - 1)
            case _:
                return None
    return (least, most) if most > least + 2 * TAIL and least <= MAX_UNITS else None


def _split_maximum(parts: Iterable[Formula]) -> tuple[tuple[Formula, ...], int | None]:
    """The parts of a conjunction without those that bound the length from above, and the least of these
    bounds."""
    rest, bounds = [], []
    for part in parts:
        match part:
            case Not(Atom(MinLength(count))):
                bounds.append(count - 1)
            case _:
                rest.append(part)
    return tuple(rest), min(bounds, default=None)


def _trim(cache: OrderedDict[Content, Any]) -> None:
    while len(cache) > CACHED:
        cache.popitem(last=False)


def content(formula: Formula) -> Content:
    """A key for a formula over strings or numbers that is equal across schemas."""
    match formula:
        case Atom(fact):
            return (fact,)
        case HasType(types):
            return (types,)
    return (type(formula), *map(content, formula.parts))


def _with_label(known: Dfa, dfa: Dfa, label: int) -> Dfa:
    if known is NOTHING and label == 0:
        return dfa
    return combine(known, dfa, lambda before, now: before if before >= 0 else label if now >= 0 else REJECT)


def _build(formula: Formula, atom: Callable[[Fact], Dfa]) -> Dfa:
    """The automaton of the texts that satisfy the formula."""
    match formula:
        case HasType(types):
            return ANYTHING if types else NOTHING
        case Atom(fact):
            return atom(fact)
        case Not(negated):
            return complement(_build(negated, atom))
    join = intersect if isinstance(formula, And) else unite
    parts = sorted((_build(part, atom) for part in formula.parts), key=lambda dfa: len(dfa.labels))
    dfa = parts[0]
    for part in parts[1:]:
        dfa = join(dfa, part)
    return dfa


def _string_atom(fact: Fact) -> Dfa:
    match fact:
        case Strings(values):
            return literals(values)
        case Pattern(regex):
            return compile_search(regex)
        case Format(name):
            return FORMATS[name]()
        case MinLength(count):
            return at_least(count)
    raise AssertionError(f"{fact} is no fact about strings")


def _atoms(formulas: Sequence[Formula]) -> list[Atom]:
    return [atom for formula in formulas for atom in formula.atoms()]


def _lists_some(formulas: Sequence[Formula]) -> bool:
    """Whether there are lists as well as other atoms."""
    atoms = _atoms(formulas)
    return len(atoms) > 1 and any(isinstance(atom.fact, Strings) for atom in atoms)


def _string_satisfies(text: str, atom: Atom) -> bool:
    match atom.fact:
        case Strings(values):
            return text in values
        case MinLength(count):
            return len(text) >= count
    return _string_atom(atom.fact).label(text) >= 0


def _without_lists(formula: Formula) -> Formula:
    """The formula for strings that are in no list."""
    match formula:
        case Atom(Strings()):
            return _FALSE
        case Not(Atom(Strings())):
            return _TRUE
        case HasType(types):
            return _TRUE if types else _FALSE
        case Atom() | Not():
            return formula
    kind, neutral, decisive = (And, _TRUE, _FALSE) if isinstance(formula, And) else (Or, _FALSE, _TRUE)
    parts = [part for part in map(_without_lists, formula.parts) if part is not neutral]
    if decisive in parts or len(parts) < 2:
        return decisive if decisive in parts else (parts or [neutral])[0]
    return kind(0, tuple(parts))


_TRUE, _FALSE = HasType(0, EVERY_TYPE), HasType(0, 0)


def _label_of(formulas: Sequence[Formula], holds: Callable[[Atom], bool]) -> int:
    """The index of the first formula that is true if exactly these atoms hold."""
    return next((number for number, formula in enumerate(formulas) if is_true(formula, holds)), REJECT)


def is_true(formula: Formula, holds: Callable[[Atom], bool]) -> bool:
    match formula:
        case Atom():
            return holds(formula)
        case Not(atom):
            return not holds(atom)
        case And(parts):
            return all(is_true(part, holds) for part in parts)
        case Or(parts):
            return any(is_true(part, holds) for part in parts)
    return formula.possible != 0


def _number_atom(fact: Fact) -> Dfa:
    match fact:
        case Integer():
            return multiples(Fraction(1))
        case AtLeast(bound):
            return _relabel(compare(bound), (1, 2))
        case MoreThan(bound):
            return _relabel(compare(bound), (2,))
        case MultipleOf(divisor):
            return multiples(divisor)
        case Numbers(values):
            return one_of(values)
    raise AssertionError(f"{fact} is no fact about numbers")


def _relabel(dfa: Dfa, accepted: tuple[int, ...]) -> Dfa:
    labels = np.where(np.isin(dfa.labels, accepted), 0, REJECT).astype(np.int32)
    return Dfa(dfa.cuts, dfa.class_of_cut, dfa.transitions, labels)


def _number_formulas(formulas: Sequence[Formula]) -> tuple[Dfa, Dfa | None]:
    """The automaton of all texts to consider, and the automaton of the formulas if they are lists of
    values."""
    atoms = _atoms(formulas)
    whole_fractions = not any(isinstance(atom.fact, Integer) for atom in atoms)
    universe = number_texts(exponents=not atoms, whole_fractions=whole_fractions)
    listed = [_list_numbers(formula) for formula in formulas]
    if any(values is None for values in listed):
        return universe, None
    labels: dict[str, int] = {}
    for text in frozenset[str]().union(*(texts or () for texts in listed)):
        value = Fraction(text)
        is_written_otherwise = value.denominator == 1 and not whole_fractions
        label = _label_of(formulas, partial(_number_satisfies, value))
        labels[str(value) if is_written_otherwise else text] = label
    return universe, labelled_literals(labels, REJECT)


def _list_numbers(formula: Formula) -> frozenset[str] | None:
    """The texts of the numbers that a formula lists, of which its other parts may forbid some; None if it
    allows others."""
    match formula:
        case Atom(Numbers(texts=texts)):
            return texts
        case HasType(0):
            return frozenset()
    listed = [_list_numbers(part) for part in formula.parts if not isinstance(formula, Not)]
    known = [texts for texts in listed if texts is not None]
    is_listed = known and (isinstance(formula, And) or len(known) == len(listed))
    return frozenset[str]().union(*known) if is_listed else None


def _number_satisfies(value: Fraction, atom: Atom) -> bool:
    match atom.fact:
        case Integer():
            return value.denominator == 1
        case AtLeast(bound):
            return value >= bound
        case MoreThan(bound):
            return value > bound
        case MultipleOf(divisor):
            return (value / divisor).denominator == 1
        case Numbers(values):
            return value in values
    raise AssertionError(f"{atom.fact} is no fact about numbers")
