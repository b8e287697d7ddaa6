"""Transition tables as the device keeps them: without what is empty, and what is like another row's.

Rows are laid over each other so that the entries of one fall into the holes of others, as parser
generators do it (R. E. Tarjan and A. C. Yao, "Storing a sparse table", 1979).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .stack_automaton import DEAD

_FREE = -1


@dataclass(frozen=True, eq=False)
class PackedRows:
    """The entry of a state for a class is `entries[row_starts[state] + class]` if that place has it as its
    owner. If not, it is the entry of `default_state[state]`, found the same way; and `DEAD` if not there."""

    row_starts: NDArray[np.int32]  # [states]
    default_state: NDArray[np.int32]  # [states]
    entries: NDArray[np.int32]  # [places]
    owners: NDArray[np.int32]  # [places], -1 for nobody

    @property
    def nbytes(self) -> int:
        """Of what doesn't come with each state."""
        return self.entries.nbytes + self.owners.nbytes


def packed(transitions: NDArray[np.int32], like_state: NDArray[np.int32]) -> PackedRows:
    """Transitions [states, classes]. A state that is like another one, which must be like none, keeps
    only where it differs, if that is less."""
    return PackedRows(*_packed(transitions, like_state))


@njit(cache=True, nogil=True)
def _packed(transitions, like_state):  # type: ignore[no-untyped-def]
    default_state = _defaults(transitions, like_state)
    ends, columns = _kept(transitions, default_state)
    row_starts, places = _placed(ends, columns, transitions.shape[1])
    entries = np.full(places, DEAD, np.int32)
    owners = np.full(places, _FREE, np.int32)
    for state in range(len(ends)):
        for i in range(ends[state - 1] if state else 0, ends[state]):
            entries[row_starts[state] + columns[i]] = transitions[state, columns[i]]
            owners[row_starts[state] + columns[i]] = state
    return row_starts, default_state, entries, owners


@njit(cache=True, nogil=True)
def _defaults(transitions, like_state):  # type: ignore[no-untyped-def]
    """For each state the one that it is like, if it differs from that in fewer entries than it has."""
    default_state = np.arange(len(like_state)).astype(np.int32)
    for state in range(len(like_state)):
        like = like_state[state]
        if like == state:
            continue
        own = differing = 0
        for column in range(transitions.shape[1]):
            own += transitions[state, column] != DEAD
            differing += transitions[state, column] != transitions[like, column]
        if differing < own:
            default_state[state] = like
    return default_state


@njit(cache=True, nogil=True)
def _kept(transitions, default_state):  # type: ignore[no-untyped-def]
    """The columns that each row keeps, one row behind the other, and where each ends."""
    states, classes = transitions.shape
    ends = np.empty(states, np.int32)
    columns = np.empty(states * classes, np.int32)
    found = 0
    for state in range(states):
        like = default_state[state]
        for column in range(classes):
            other = DEAD if like == state else transitions[like, column]
            if transitions[state, column] != other:
                columns[found] = column
                found += 1
        ends[state] = found
    return ends, columns[:found].copy()


@njit(cache=True, nogil=True)
def _longest_first(ends, most):  # type: ignore[no-untyped-def]
    """The rows by how many columns, up to `most`, they have."""
    first = np.zeros(most + 2, np.int32)
    for row in range(len(ends)):
        first[most - _length(ends, row) + 1] += 1
    for length in range(most + 1):
        first[length + 1] += first[length]
    order = np.empty(len(ends), np.int32)
    for row in range(len(ends)):
        place = most - _length(ends, row)
        order[first[place]] = row
        first[place] += 1
    return order


@njit(cache=True, nogil=True)
def _length(ends, row):  # type: ignore[no-untyped-def]
    return ends[row] - (ends[row - 1] if row else 0)


@njit(cache=True, nogil=True)
def _placed(ends, columns, classes):  # type: ignore[no-untyped-def]
    """Where each row begins, and how many places there are.

    A row goes to the first fit behind the one before it. The search begins anew when rows are half as long.
    """
    taken = np.zeros(len(columns) + (len(ends) + 2) * classes, np.bool_)
    row_starts = np.zeros(len(ends), np.int32)
    start = behind = 0
    long = classes
    for state in _longest_first(ends, classes):
        row = columns[ends[state - 1] if state else 0 : ends[state]]
        if not len(row):
            break
        if 2 * len(row) <= long:
            start, long = 0, len(row)
        start = _first_fit(taken, row, start)
        for column in row:
            taken[start + column] = True
        row_starts[state] = start
        behind = max(behind, start + classes)
    return row_starts, max(behind, classes)


@njit(cache=True, nogil=True)
def _first_fit(taken, row, start):  # type: ignore[no-untyped-def]
    while True:
        at = 0
        while at < len(row) and not taken[start + row[at]]:
            at += 1
        if at == len(row):
            return start
        start += 1
