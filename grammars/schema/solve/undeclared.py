"""Sorts the undeclared names of one object by the formulas over names that hold for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import numpy as np

from ...regex.dfa import ANYTHING, REJECT, Dfa, combine
from ..read.formula import Formula, Strings
from ..read.formulas import Formulas
from .nodes import UndeclaredNames
from .scalars import Scalars, content

_Formulas: TypeAlias = tuple[Formula, ...]
Kind: TypeAlias = tuple[int, dict[Formula, bool]]
"""a label, and which formulas hold for the names with this label"""


class UndeclaredKinds:
    """The kinds of names outside of `declared`, cached by formulas."""

    def __init__(self, scalars: Scalars, formulas: Formulas, declared: Sequence[str]) -> None:
        self._scalars = scalars
        self._make = formulas
        self._declared = declared
        self._kinds: dict[_Formulas, list[Kind]] = {}
        self._named: dict[tuple[_Formulas, tuple[int, ...]], UndeclaredNames] = {}
        self._classes: dict[_Formulas, Dfa] = {}

    def find_kinds(self, formulas: _Formulas) -> list[Kind]:
        known = self._kinds.get(formulas)
        if known is None:
            labels = self._classify(formulas).labels
            known = self._kinds[formulas] = [
                (label, {names: bool(label >> bit & 1) for bit, names in enumerate(formulas)})
                for label in np.unique(labels[labels >= 0]).tolist()
            ]
        return known

    def select_names(self, formulas: _Formulas, labels: tuple[int, ...]) -> UndeclaredNames:
        """The names of the kinds with these labels, renumbered in this order."""
        known = self._named.get((formulas, labels))
        if known is None:
            dfa = self._classify(formulas)
            number = np.full(1 << len(formulas), REJECT, np.int32)
            number[list(labels)] = np.arange(len(labels))
            kept = np.where(dfa.labels >= 0, number[dfa.labels], REJECT).astype(np.int32)
            key = (tuple(map(content, formulas)), tuple(sorted(self._declared)), labels)
            known = self._named[formulas, labels] = UndeclaredNames(replace(dfa, labels=kept), key, False)
        return known

    def _classify(self, formulas: _Formulas) -> Dfa:
        """The automaton that labels undeclared names with a bit for each formula."""
        known = self._classes.get(formulas)
        if known is None:
            known = self._classes[formulas] = self._classify_new(formulas)
        return known

    def _classify_new(self, formulas: _Formulas) -> Dfa:
        if formulas:
            one = self._scalars.string_dfa(formulas[-1:])
            return combine(self._classify(formulas[:-1]), one, partial(_with_bit, len(formulas) - 1))
        if not self._declared:
            return ANYTHING
        negated = self._make.negation(self._make.atom(Strings(frozenset(self._declared))))
        return self._scalars.string_dfa((negated,))


def _with_bit(bit: int, known: int, now: int) -> int:
    return known | (now >= 0) << bit if known >= 0 else REJECT
