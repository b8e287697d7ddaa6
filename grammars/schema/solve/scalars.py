"""Strings and numbers: from a formula's atoms to automata, cached across schemas."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np

from ...errors import TooLargeError
from ...machine.stack_automaton import TAIL
from ...regex.dfa import (
    ANYTHING,
    MAX_CELLS,
    NOTHING,
    REJECT,
    Dfa,
    combined,
    complement,
    explored,
    intersection,
    minimal,
    union,
)
from ...regex.regex_dfa import searching
from ..lexical.code_points import Spelling
from ..lexical.formats import FORMATS
from ..lexical.json_string_bytes import Block, counted, inlined, plain, spelled
from ..lexical.numbers import canonical, compared, multiples, one_of, spellings
from ..read.formula import Formula
from ..read.one_sided import OneSidedError, is_one_sided

MAX_UNITS = 256  # larger counts would be so many copies of a character's states
MAX_LITERAL_STATES = 20_000
MAX_JOINT_ATOMS = 8
CACHED = 500
Content: TypeAlias = tuple[Any, ...]


class Scalars:
    """Automata of string and number formulas, remembered by content: schemas repeat each other."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[Content, Block | None] = OrderedDict()
        self._dfas: OrderedDict[Content, Dfa] = OrderedDict()

    def string_block(self, formulas: Sequence[Formula]) -> Block | None:
        """What follows an opening quote where text must satisfy exactly one of the formulas: its index."""
        free = all(atom.payload[0] == "characters" for formula in formulas for atom in formula.atoms())
        spelling: Spelling = "any" if free else "usual"
        key = ("string", *map(content, formulas))
        bounds = counted_lengths(formulas)
        if bounds is not None:
            return self._remembered(key, lambda: counted(*bounds))
        return self._remembered(key, lambda: spelled(self.string_dfa(formulas), spelling))

    def name_block(self, dfa: Callable[[], Dfa], key: Content, *, is_shared: bool) -> Block | None:
        """The same for property names; `key` stands for the automaton. Shared nodes need the stack."""
        if is_shared:
            return self._remembered(("name", *key), lambda: spelled(dfa(), "lower"))
        return self._remembered(("whole name", *key), lambda: inlined(dfa(), "lower"))

    def number_block(self, formulas: Sequence[Formula]) -> Block | None:
        key = ("number", *map(content, formulas))
        return self._remembered(key, lambda: plain(self.number_dfa(formulas)))

    def string_dfa(self, formulas: Sequence[Formula]) -> Dfa:
        """Labels texts with the index of the formula that they satisfy."""
        key = ("string", *map(content, formulas))
        known = self._dfas.get(key)
        if known is None and _lists_some(formulas):
            known = self._dfas[key] = self._with_lists(formulas)
        return known or self._labelled(key, formulas, _string_atom, lambda _: (ANYTHING, None))

    def _with_lists(self, formulas: Sequence[Formula]) -> Dfa:
        """All other strings are in none of the lists."""
        listed = frozenset[str]().union(*(atom.payload[1] for atom in _atoms(formulas) if _is_list(atom)))
        labels = {text: _label_of(formulas, partial(_string_satisfies, text)) for text in listed}
        if all(map(_is_list, _atoms(formulas))):
            return labelled_literals(labels, _label_of(formulas, lambda _: False))
        others = self.string_dfa([_without_lists(formula) for formula in formulas])
        unlisted = len(formulas) + 1
        exceptions = labelled_literals({text: 1 + label for text, label in labels.items()}, unlisted)
        return combined(exceptions, others, lambda own, other: other if own == unlisted else own - 1)

    def number_dfa(self, formulas: Sequence[Formula]) -> Dfa:
        return self._labelled(("number", *map(content, formulas)), formulas, _number_atom, _number_formulas)

    def _labelled(
        self,
        key: Content,
        formulas: Sequence[Formula],
        atom: Callable[[Content], Dfa],
        whole: Callable[[Sequence[Formula]], tuple[Dfa, Dfa | None]],
    ) -> Dfa:
        known = self._dfas.get(key)
        if known is None:
            universe, known = whole(formulas)
            if known is None:
                known = _jointly(formulas, atom) if _share_atoms(formulas) else _separately(formulas, atom)
                known = known if universe is ANYTHING else intersection(known, universe)
            self._dfas[key] = known
            _trim(self._dfas)
        return known

    def _remembered(self, key: Content, build: Callable[[], Block | None]) -> Block | None:
        if key not in self._blocks:
            self._blocks[key] = build()
            _trim(self._blocks)
        return self._blocks[key]


def _share_atoms(formulas: Sequence[Formula]) -> bool:
    """Whether they are built of the same few atoms again and again."""
    atoms = [atom for formula in formulas for atom in formula.atoms()]
    distinct = len(set(atoms))
    return len(formulas) > 1 and distinct <= MAX_JOINT_ATOMS and len(atoms) >= 2 * distinct


def _jointly(formulas: Sequence[Formula], atom: Callable[[Content], Dfa]) -> Dfa:
    """One product of all atoms, each a bit of the label, which then says what formula holds."""
    atoms = list(dict.fromkeys(atom for formula in formulas for atom in formula.atoms()))
    known = ANYTHING
    for each in atoms:
        known = combined(known, atom(each.payload), lambda bits, now: bits << 1 | (now >= 0))
    place = {each: len(atoms) - 1 - number for number, each in enumerate(atoms)}
    every_label = range(1 << len(atoms))
    labels = [_label_of(formulas, partial(_has_bit, place, bits)) for bits in every_label]
    of_state = np.array(labels, np.int32)[known.labels]
    return minimal(Dfa(known.cuts, known.class_of_cut, known.transitions, of_state))


def _has_bit(place: Mapping[Formula, int], bits: int, atom: Formula) -> bool:
    return bool(bits >> place[atom] & 1)


def _separately(formulas: Sequence[Formula], atom: Callable[[Content], Dfa]) -> Dfa:
    known = NOTHING
    for number, formula in enumerate(formulas):
        known = _with_label(known, _built(formula, atom), number)
    return known


def counted_lengths(formulas: Sequence[Formula]) -> tuple[int, int] | None:
    """The least and the most code points, if that is all that is asked and the most is large."""
    least, most = 0, 0
    if len(formulas) > 1:
        return None
    for part in formulas[0].conjuncts():
        atom = part.parts[0] if part.kind == "not" else part
        if atom.kind != "atom" or atom.payload[0] != "characters":
            return None
        if part.kind == "not":
            most = min(most or atom.payload[1] - 1, atom.payload[1] - 1)
        else:
            least = max(least, atom.payload[1])
    return (least, most) if most > least + 2 * TAIL and least <= MAX_UNITS else None


def _trim(cache: OrderedDict[Content, Any]) -> None:
    while len(cache) > CACHED:
        cache.popitem(last=False)


def content(formula: Formula) -> Content:
    """What the formula says, comparable across schemas. For atoms of strings and numbers."""
    if formula.kind == "atom":
        return formula.payload
    return (formula.kind, *map(content, formula.parts))


def _with_label(known: Dfa, dfa: Dfa, label: int) -> Dfa:
    if known is NOTHING and label == 0:
        return dfa
    return combined(known, dfa, lambda before, now: before if before >= 0 else label if now >= 0 else REJECT)


def _built(formula: Formula, atom: Callable[[Content], Dfa]) -> Dfa:
    """Label 0 for what satisfies the formula."""
    kind = formula.kind
    if kind == "true":
        return ANYTHING
    if kind == "false":
        return NOTHING
    if kind == "atom":
        return atom(formula.payload)
    if kind == "not":
        return complement(_built(formula.parts[0], atom))
    join = intersection if kind == "and" else union
    parts = sorted((_built(part, atom) for part in formula.parts), key=lambda dfa: len(dfa.labels))
    dfa = parts[0]
    for part in parts[1:]:
        dfa = join(dfa, part)
    return dfa


def _string_atom(payload: Content) -> Dfa:
    name, argument = payload
    if name == "in":
        return literals(argument)
    if name == "pattern":
        return searching(argument)
    if name == "format":
        return FORMATS[argument]()
    assert name == "characters"
    return at_least(argument)


@lru_cache(64)
def at_least(count: int) -> Dfa:
    """Texts of so many code points or more."""
    if count > MAX_UNITS + 1:
        raise TooLargeError(f"a length of {count - 1}; automata count to {MAX_UNITS}")
    steps = explored(
        (0,), (0,), 0, lambda state, _: min(state + 1, count), lambda state: min(0, state - count)
    )
    return Dfa(
        steps.cuts,
        steps.class_of_cut,
        steps.transitions,
        np.where(steps.labels == 0, 0, REJECT).astype(np.int32),
    )


def _atoms(formulas: Sequence[Formula]) -> list[Formula]:
    return [atom for formula in formulas for atom in formula.atoms()]


def _is_list(atom: Formula) -> bool:
    return bool(atom.payload[0] == "in")


def _lists_some(formulas: Sequence[Formula]) -> bool:
    """Whether it is worth while to look at the listed strings one by one."""
    atoms = _atoms(formulas)
    return len(atoms) > 1 and any(map(_is_list, atoms))


def _string_satisfies(text: str, atom: Formula) -> bool:
    name, argument = atom.payload
    if name == "in":
        return text in argument
    if name == "characters":
        return bool(len(text) >= argument)
    found = _string_atom(atom.payload).label(text) >= 0
    if not found and is_one_sided(atom):
        raise OneSidedError(argument)
    return found


def _without_lists(formula: Formula) -> Formula:
    """What it says of strings that are in no list."""
    if formula.kind == "atom":
        return _FALSE if _is_list(formula) else formula
    if formula.kind in ("true", "false"):
        return _TRUE if formula.kind == "true" else _FALSE
    parts = [_without_lists(part) for part in formula.parts]
    if formula.kind == "not" and parts[0].kind in ("true", "false"):
        return _FALSE if parts[0].kind == "true" else _TRUE
    if formula.kind in ("and", "or"):
        neutral, decisive = (_TRUE, _FALSE) if formula.kind == "and" else (_FALSE, _TRUE)
        parts = [part for part in parts if part is not neutral]
        if decisive in parts or len(parts) < 2:
            return decisive if decisive in parts else (parts or [neutral])[0]
    return Formula(0, formula.kind, formula.types, formula.payload, tuple(parts))


_TRUE, _FALSE = Formula(0, "true", 0, (), ()), Formula(0, "false", 0, (), ())


def _label_of(formulas: Sequence[Formula], holds: Callable[[Formula], bool]) -> int:
    """The index of the formula that is true where these atoms hold."""
    return next((number for number, formula in enumerate(formulas) if is_true(formula, holds)), REJECT)


def is_true(formula: Formula, holds: Callable[[Formula], bool]) -> bool:
    kind = formula.kind
    if kind == "atom":
        return holds(formula)
    if kind == "not":
        return not is_true(formula.parts[0], holds)
    if kind in ("and", "or"):
        return (all if kind == "and" else any)(is_true(part, holds) for part in formula.parts)
    return kind == "true"


def literals(texts: Iterable[str]) -> Dfa:
    """Exactly these texts."""
    return labelled_literals(dict.fromkeys(texts, 0), REJECT)


def labelled_literals(label_of_text: Mapping[str, int], label_of_others: int) -> Dfa:
    """A label for each of these texts, one for all others."""
    ordered = sorted(label_of_text)
    letters = sorted({ord(letter) for text in ordered for letter in text})
    column = {letter: position + 1 for position, letter in enumerate(letters)}
    rows: list[dict[int, int]] = [{}]
    labels = [label_of_others]
    for text in ordered:
        state = 0
        for letter in text:
            following = rows[state].get(column[ord(letter)])
            if following is None:
                following = rows[state][column[ord(letter)]] = len(rows)
                rows.append({})
                labels.append(label_of_others)
            state = following
        labels[state] = label_of_text[text]
        if len(rows) > MAX_LITERAL_STATES:
            raise TooLargeError(f"the listed strings need more than {MAX_LITERAL_STATES} states")
    if len(rows) * len(letters) > MAX_CELLS:
        raise TooLargeError(f"the listed strings need a table of more than {MAX_CELLS} entries")
    transitions = np.full((len(rows) + 1, len(letters) + 1), len(rows), np.int32)
    for state, row in enumerate(rows):
        transitions[state, list(row)] = list(row.values())
    return minimal(_over_letters(letters, transitions, np.array([*labels, label_of_others], np.int32)))


def _over_letters(letters: list[int], transitions: Any, labels: Any) -> Dfa:
    """Class 0 is for every other code point."""
    class_at = {0: 0}
    for position, letter in enumerate(letters):
        class_at[letter] = position + 1
        class_at.setdefault(letter + 1, 0)
    cuts = sorted(class_at)
    return Dfa(
        np.array(cuts, np.int32),
        np.array([class_at[cut] for cut in cuts], np.int32),
        transitions,
        labels,
    )


def _number_atom(payload: Content) -> Dfa:
    name = payload[0]
    if name == "integer":
        return multiples(Fraction(1))
    if name == "least":
        return _relabelled(compared(payload[1]), (1, 2))
    if name == "over":
        return _relabelled(compared(payload[1]), (2,))
    if name == "multiple":
        return multiples(payload[1])
    assert name == "numbers"
    return one_of(payload[1])


def _relabelled(dfa: Dfa, accepted: tuple[int, ...]) -> Dfa:
    labels = np.where(np.isin(dfa.labels, accepted), 0, REJECT).astype(np.int32)
    return Dfa(dfa.cuts, dfa.class_of_cut, dfa.transitions, labels)


def _number_formulas(formulas: Sequence[Formula]) -> tuple[Dfa, Dfa | None]:
    """The spellings in question, and the automaton if they are plain lists of values."""
    atoms = [atom.payload[0] for formula in formulas for atom in formula.atoms()]
    whole_fractions = "integer" not in atoms
    universe = spellings(exponents=not atoms, whole_fractions=whole_fractions)
    listed = [_listed_numbers(formula) for formula in formulas]
    if any(values is None for values in listed):
        return universe, None
    spelled = {
        text: _label_of(formulas, partial(_number_satisfies, value))
        for value in frozenset[Fraction]().union(*(values or () for values in listed))
        for text in canonical(value, whole_fractions=whole_fractions)
    }
    return universe, labelled_literals(spelled, REJECT)


def _listed_numbers(formula: Formula) -> frozenset[Fraction] | None:
    """Those that a formula lists, of which it may forbid some."""
    for part in formula.conjuncts():
        if part.kind == "atom" and part.payload[0] == "numbers":
            return part.payload[1]  # type: ignore[no-any-return]
    return None


def _number_satisfies(value: Fraction, atom: Formula) -> bool:
    name, *arguments = atom.payload
    if name == "integer":
        return value.denominator == 1
    if name == "least":
        return bool(value >= arguments[0])
    if name == "over":
        return bool(value > arguments[0])
    if name == "multiple":
        return bool((value / arguments[0]).denominator == 1)
    return value in arguments[0]
