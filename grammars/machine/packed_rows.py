"""Transition tables as the device keeps them: without empty entries and entries equal to another row's.

Rows overlap so that the entries of one row fill the holes of others, as in parser generators
 (R. E. Tarjan and A. C. Yao, "Storing a sparse table", 1979).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...runtime.automaton_format import DEAD, ENTRY, ENTRY_COLUMNS, OWNER
from ..jit import njit
from ..jit.arrays import sort_by_key

_FREE = -1


class PackedRows(NamedTuple):
    """The transitions of `automaton_format.AutomatonTables`."""

    row_starts: NDArray[np.int32]  # [states]: where each state's entries begin
    default_state: NDArray[np.int32]  # [states]: the state with each state's default entries
    entries: NDArray[np.int32]  # [places, ENTRY_COLUMNS]: entries and their owners


def pack_rows(transitions: NDArray[np.int32], like_state: NDArray[np.int32]) -> PackedRows:
    """Packs transitions [states, classes]. A state keeps only its differences from its `like_state`, if
    they are fewer than its entries. That state must be its own `like_state`."""
    return PackedRows(*_pack_rows(transitions, like_state))


@njit(cache=True, nogil=True)
def _pack_rows(transitions, like_state):
    default_state = _defaults(transitions, like_state)
    ends, columns = _find_kept(transitions, default_state)
    row_starts, places = _place_rows(ends, columns, transitions.shape[1])
    entries = np.empty((places, ENTRY_COLUMNS), np.int32)
    entries[:, ENTRY] = DEAD
    entries[:, OWNER] = _FREE
    for state in range(len(ends)):
        for i in range(ends[state - 1] if state else 0, ends[state]):
            entries[row_starts[state] + columns[i], ENTRY] = transitions[state, columns[i]]
            entries[row_starts[state] + columns[i], OWNER] = state
    return row_starts, default_state, entries


@njit(cache=True, nogil=True)
def _defaults(transitions, like_state):
    """For each state the state with its default entries: its `like_state`, if the row differs from that
    one's in fewer columns than it has entries; otherwise itself, and the row keeps all its entries."""
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
def _find_kept(transitions, default_state):
    """Where each row's kept columns end in a list, and that list of kept columns, row by row."""
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
def _place_rows(ends, columns, classes):
    """Where each row begins, and the number of places.

    A row takes the first fit behind the previous row. The search restarts when rows are half as long.
    """
    taken = np.zeros(len(columns) + (len(ends) + 2) * classes, np.bool_)
    row_starts = np.zeros(len(ends), np.int32)
    start = behind = 0
    long = classes
    fewer = classes - ends
    fewer[1:] += ends[:-1]
    for state in sort_by_key(fewer, classes + 1)[1]:  # rows with the most columns come first
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
def _first_fit(taken, row, start):
    while True:
        at = 0
        while at < len(row) and not taken[start + row[at]]:
            at += 1
        if at == len(row):
            return start
        start += 1
