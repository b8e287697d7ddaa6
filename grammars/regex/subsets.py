"""Makes a regex's automaton deterministic: each state is the set of places that a text leads to."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..jit import njit
from ..jit.arrays import grow_rows, longer, no_rows, number_next
from .dfa import DEAD


class Edges(NamedTuple):
    """The edges of node n lead to `targets[first[n]:first[n + 1]]`."""

    first: NDArray[np.int64]  # [nodes + 1]: first edge of each node
    targets: NDArray[np.int32]


class Moves(NamedTuple):
    """Place p has the moves from `first[p]` up to `first[p + 1]`. A move leads to the places
    `reached[leads_to[move]]`."""

    first: NDArray[np.int64]  # [places + 1]: first move of each place
    takes: NDArray[np.bool_]  # [moves, classes]: whether the move reads the class
    leads_to: NDArray[np.int64]  # [moves]: a set of `reached`
    reached: NDArray[np.uint64]  # [sets, words]: a bit for each place


def edges(nodes: int, sources: NDArray[np.int32], targets: NDArray[np.int32]) -> Edges:
    order = np.argsort(sources, kind="stable")
    first = np.searchsorted(sources[order], np.arange(nodes + 1))
    return Edges(first, targets[order])


@njit(cache=True)
def closures(edges, sources, place, words):
    """For each source, its place and the places of all nodes that edges lead to: uint64 [sources, words].

    place: the place of each node, -1 for a node without one
    """
    found = np.zeros((len(sources), words), np.uint64)
    seen = np.full(len(place), -1, np.int32)
    pending = np.empty(len(place), np.int32)
    for number in range(len(sources)):
        pending[0] = sources[number]
        seen[sources[number]] = number
        count = 1
        while count:
            count -= 1
            node = pending[count]
            if place[node] >= 0:
                found[number, place[node] >> 6] |= np.uint64(1) << np.uint64(place[node] & 63)
            for edge in range(edges.first[node], edges.first[node + 1]):
                target = edges.targets[edge]
                if seen[target] != number:
                    seen[target] = number
                    pending[count] = target
                    count += 1
    return found


@njit(cache=True)
def subsets(start, moves, limit):
    """The sets that texts lead to, uint64 [states, words], and their transitions [states, classes].

    State 0 is the set of the empty text, and no other text leads to it. The search stops at `limit` states.
    """
    words, classes = len(start), moves.takes.shape[1]
    sets = no_rows(np.zeros((64, words), np.uint64))  # all but the first row
    transitions = np.empty((64, classes), np.int32)
    following = np.empty((classes, words), np.uint64)
    current = 0
    while current <= sets.used[0] and sets.used[0] + 1 < limit:
        if current == len(transitions):
            transitions = longer(transitions, 2 * current)
        following[:] = 0
        _follow(sets.rows[current - 1] if current else start, moves, following)
        for column in range(classes):
            transitions[current, column] = DEAD
            if following[column].any():
                if sets.used[0] == len(sets.rows):
                    sets = grow_rows(sets)
                sets.rows[sets.used[0]] = following[column]
                transitions[current, column] = 1 + number_next(sets)
        current += 1
    return np.concatenate((start.reshape(1, -1), sets.rows[: sets.used[0]])), transitions[:current].copy()


@njit(cache=True)
def _follow(places, moves, following):
    """Adds to `following[class]` the places to which the moves of these places lead."""
    for word in range(len(places)):
        rest = places[word]
        place = 64 * word
        while rest:
            if rest & np.uint64(1):
                for move in range(moves.first[place], moves.first[place + 1]):
                    reached = moves.reached[moves.leads_to[move]]
                    for column in range(len(following)):
                        if moves.takes[move, column]:
                            for part in range(len(reached)):
                                following[column, part] |= reached[part]
            rest >>= np.uint64(1)
            place += 1
