"""Automata of listed texts, and of texts with a minimum length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ...errors import TooLargeError
from ...regex.dfa import MAX_CELLS, REJECT, Dfa, explore, minimize

MAX_UNITS = 256  # maximal count; a larger count would need too many copies of a character's states
MAX_LITERAL_STATES = 20_000


class LengthError(TooLargeError):
    """A string whose automaton would have to tell texts of at least `count` code points from shorter ones."""

    def __init__(self, count: int) -> None:
        super().__init__(f"beside these constraints, automata count up to {MAX_UNITS} characters")
        self.count = count


@lru_cache(64)
def at_least(count: int) -> Dfa:
    """The automaton of texts with at least `count` code points."""
    if count > MAX_UNITS + 1:
        raise LengthError(count)
    steps = explore(
        (0,), (0,), 0, lambda state, _: min(state + 1, count), lambda state: min(0, state - count)
    )
    return Dfa(
        steps.cuts,
        steps.class_of_cut,
        steps.transitions,
        np.where(steps.labels == 0, 0, REJECT).astype(np.int32),
    )


def literals(texts: Iterable[str]) -> Dfa:
    """The automaton of exactly these texts."""
    return labelled_literals(dict.fromkeys(texts, 0), REJECT)


def labelled_literals(label_of_text: Mapping[str, int], label_of_others: int) -> Dfa:
    """The automaton with a label for each of these texts and one label for all others."""
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
    return minimize(_over_letters(letters, transitions, np.array([*labels, label_of_others], np.int32)))


def _over_letters(letters: list[int], transitions: NDArray[np.int32], labels: NDArray[np.int32]) -> Dfa:
    """The automaton with one class for each letter. Class 0 is every other code point."""
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
