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
    numbers = np.arange(len(like_state), dtype=np.int32)
    own = transitions != DEAD
    differing = transitions != transitions[like_state]
    follows = (like_state != numbers) & (differing.sum(axis=1) < own.sum(axis=1))
    kept = np.where(follows[:, None], differing, own)
    states, columns = np.nonzero(kept)
    ends = np.cumsum(kept.sum(axis=1))
    longest_first = np.argsort(-kept.sum(axis=1), kind="stable").astype(np.int32)
    row_starts, places = _placed(ends, columns, longest_first, transitions.shape[1])
    entries = np.full(places, DEAD, np.int32)
    owners = np.full(places, _FREE, np.int32)
    taken = row_starts[states] + columns
    entries[taken] = transitions[states, columns]
    owners[taken] = states
    return PackedRows(row_starts, np.where(follows, like_state, numbers), entries, owners)


@njit(cache=True, nogil=True)
def _placed(ends, columns, longest_first, classes):  # type: ignore[no-untyped-def]
    """Where each row begins, and how many places there are.

    A row goes to the first fit behind the one before it. The search begins anew when rows are half as long.
    """
    taken = np.zeros(len(columns) + (len(longest_first) + 2) * classes, np.bool_)
    row_starts = np.zeros(len(longest_first), np.int32)
    start = behind = 0
    long = classes
    for state in longest_first:
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
