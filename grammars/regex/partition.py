"""Merges states with equal futures, by splitting sets of states and of transitions in turn.

A. Valmari, "Fast brief practical DFA minimization", Information Processing Letters 112 (2012): time
proportional to the transitions and the logarithm of the states; transitions may be missing.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..jit import njit
from ..jit.arrays import sort_by_key


class _Partition(NamedTuple):
    """The elements of set s are `elements[first[s]:past[s]]`, the first `marked[s]` of them marked."""

    elements: NDArray[np.int32]
    place: NDArray[np.int32]  # the index of each element in `elements`
    set_of: NDArray[np.int32]
    first: NDArray[np.int32]
    past: NDArray[np.int32]
    marked: NDArray[np.int32]
    touched: NDArray[np.int32]  # sets with marks
    counts: NDArray[np.int32]  # [2]: number of sets and number of touched sets


@njit(cache=True)
def equal_futures(transitions, labels):
    """A number for each state, int32: equal for states from which equal texts lead to equal labels.

    transitions: [states, classes], negative if there is no transition
    labels: int32 [states]
    """
    tails, columns, heads = list_edges(transitions)
    incoming, order = sort_by_key(heads, len(labels))
    blocks = _partition(labels - labels.min())
    cords = _partition(columns)
    block, cord = 1, 0
    while cord < cords.counts[0]:
        for i in range(cords.first[cord], cords.past[cord]):
            _mark(blocks, tails[cords.elements[i]])
        _split(blocks)
        cord += 1
        while block < blocks.counts[0]:
            for i in range(blocks.first[block], blocks.past[block]):
                state = blocks.elements[i]
                for j in range(incoming[state], incoming[state + 1]):
                    _mark(cords, order[j])
            _split(cords)
            block += 1
    return blocks.set_of


@njit(cache=True)
def list_edges(transitions):
    """The state, the class and the target of each transition."""
    states, classes = transitions.shape
    count = 0
    for state in range(states):
        for column in range(classes):
            count += transitions[state, column] >= 0
    tails, columns, heads = np.empty(count, np.int32), np.empty(count, np.int32), np.empty(count, np.int32)
    count = 0
    for state in range(states):
        for column in range(classes):
            if transitions[state, column] >= 0:
                tails[count], columns[count], heads[count] = state, column, transitions[state, column]
                count += 1
    return tails, columns, heads


@njit(cache=True)
def _partition(keys):
    """One set for each key that occurs."""
    count = len(keys)
    bounds, elements = sort_by_key(keys, keys.max() + 1 if count else 0)
    place, set_of = np.empty(count, np.int32), np.empty(count, np.int32)
    first, past = np.empty(count, np.int32), np.empty(count, np.int32)
    sets = 0
    for key in range(len(bounds) - 1):
        if bounds[key] == bounds[key + 1]:
            continue
        first[sets], past[sets] = bounds[key], bounds[key + 1]
        for i in range(bounds[key], bounds[key + 1]):
            place[elements[i]] = i
            set_of[elements[i]] = sets
        sets += 1
    counts = np.array([sets, 0], np.int32)
    marked, touched = np.zeros(count, np.int32), np.empty(count, np.int32)
    return _Partition(elements, place, set_of, first, past, marked, touched, counts)


@njit(cache=True)
def _mark(partition, element):
    elements, place = partition.elements, partition.place
    own = partition.set_of[element]
    here, there = place[element], partition.first[own] + partition.marked[own]
    elements[here] = elements[there]
    place[elements[here]] = here
    elements[there] = element
    place[element] = there
    if partition.marked[own] == 0:
        partition.touched[partition.counts[1]] = own
        partition.counts[1] += 1
    partition.marked[own] += 1


@njit(cache=True)
def _split(partition):
    """Splits each set with some marked elements in two; the smaller part becomes a new set."""
    first, past, marked = partition.first, partition.past, partition.marked
    while partition.counts[1]:
        partition.counts[1] -= 1
        own = partition.touched[partition.counts[1]]
        middle = first[own] + marked[own]
        if middle < past[own]:
            new = partition.counts[0]
            if marked[own] <= past[own] - middle:
                first[new], past[new] = first[own], middle
                first[own] = middle
            else:
                first[new], past[new] = middle, past[own]
                past[own] = middle
            for i in range(first[new], past[new]):
                partition.set_of[partition.elements[i]] = new
            marked[new] = 0
            partition.counts[0] += 1
        marked[own] = 0
