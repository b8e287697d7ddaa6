"""Upper bounds of the length of a string that has other constraints: its automaton counts on the stack.

The string's automaton exists twice. In the first copy each code point counts down. When the count reaches
0, the string goes on in the second copy, whose states know how many code points are left: enough of them for
the longest way to an end, and for `TAIL` more, so that no mask of the first copy depends on the count.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import TooLargeError
from ...jit import njit
from ...machine.stack_automaton import TAIL
from ...regex.dfa import DEAD, MAX_STATES, Dfa
from ...regex.partition import equal_futures
from .texts import MAX_UNITS

MAX_COUNTED = 4 * MAX_STATES
_FAR = 1 << 30


class CountedDfa(NamedTuple):
    """The states of `dfa` below `counting` count. `after[state]` is the state in place of `state` when the
    count of `first` code points reaches 0, or the state itself where that never happens."""

    dfa: Dfa
    counting: int
    after: NDArray[np.int32]  # [counting]: state at count 0
    first: int


def can_count(dfa: Dfa, max_length: int) -> bool:
    """Whether a count makes a minimal automaton with an upper bound smaller, or possible at all."""
    tail = _tail(dfa, max_length)
    is_simple = longest(dfa) <= max_length or shortest(dfa) > max_length
    return is_simple or max_length > 2 * tail or max_length > max(tail, MAX_UNITS)


def shortest(dfa: Dfa) -> int:
    """The number of code points in the shortest text that a minimal automaton accepts."""
    return int(_to_end(dfa.transitions, dfa.labels)[0])


def longest(dfa: Dfa) -> int:
    """The number of code points in the longest text that a minimal automaton accepts; `_FAR` if unbounded."""
    return int(_depths(dfa.transitions).max())


def _tail(dfa: Dfa, max_length: int) -> int:
    """The number of code points that must be left at count 0. Only states that can reach it count."""
    distance, depth = _to_end(dfa.transitions, dfa.labels), _depths(dfa.transitions)
    tail = TAIL
    while (needed := TAIL + int(distance[depth >= max_length - tail].max(initial=0))) > tail:
        tail = needed
    return tail


def limit_length(dfa: Dfa, max_length: int) -> CountedDfa:
    """The texts of a minimal automaton that have at most `max_length` code points. Raises TooLargeError."""
    tail = _tail(dfa, max_length)
    states = len(dfa.labels)
    if states * (tail + 2) > MAX_COUNTED:
        raise TooLargeError(f"more than {MAX_COUNTED} states in a string of at most {max_length} characters")
    distance = _to_end(dfa.transitions, dfa.labels)
    entered = np.flatnonzero(_depths(dfa.transitions) >= max_length - tail)
    rows, labels = _ending(dfa.transitions, dfa.labels, distance, entered, tail)
    _, first, number = np.unique(equal_futures(rows, labels), return_index=True, return_inverse=True)
    number = number.reshape(-1) + states
    after = np.arange(states)
    after[entered] = number[: len(entered)]
    whole = np.concatenate([dfa.transitions, np.where(rows[first] >= 0, number[rows[first]], DEAD)])
    both = Dfa(dfa.cuts, dfa.class_of_cut, whole.astype(np.int32), np.append(dfa.labels, labels[first]))
    return CountedDfa(both, states, after.astype(np.int32), max_length - tail)


@njit(cache=True)
def _ending(transitions, labels, distance, entered, tail):
    """The transitions and labels of the states that know how many code points are left. The first of them
    are those of the `entered` states with `tail` left."""
    states, classes = transitions.shape
    number = np.full((tail + 1, states), DEAD, np.int32)
    rows = np.full((len(entered) + tail * states, classes), DEAD, np.int32)
    ends = np.full(len(rows), -1, np.int32)
    found = 0
    for state in entered:
        number[tail, state] = found
        found += 1
    for left in range(tail, -1, -1):
        for state in range(states):
            own = number[left, state]
            if own < 0:
                continue
            ends[own] = labels[state]
            for column in range(classes):
                target = transitions[state, column]
                if left and target >= 0 and distance[target] < left:
                    if number[left - 1, target] < 0:
                        number[left - 1, target] = found
                        found += 1
                    rows[own, column] = number[left - 1, target]
    return rows[:found].copy(), ends[:found].copy()


@njit(cache=True)
def _to_end(transitions, labels):
    distance = np.where(labels >= 0, 0, _FAR).astype(np.int32)
    changing = True
    while changing:
        changing = False
        for state in range(len(labels) - 1, -1, -1):
            for target in transitions[state]:
                if target >= 0 and distance[target] + 1 < distance[state]:
                    distance[state] = distance[target] + 1
                    changing = True
    return distance


@njit(cache=True)
def _depths(transitions):
    """The number of code points in the longest text that leads to each state; `_FAR` if unbounded."""
    states = len(transitions)
    waiting = np.zeros(states, np.int32)  # number of edges from states whose depth is not known yet
    for row in transitions:
        for target in row:
            if target >= 0:
                waiting[target] += 1
    depth = np.zeros(states, np.int32)
    pending = [np.int64(state) for state in np.flatnonzero(waiting == 0)]
    while len(pending) > 0:
        state = pending.pop()
        for target in transitions[state]:
            if target >= 0:
                depth[target] = max(depth[target], depth[state] + 1)
                waiting[target] -= 1
                if waiting[target] == 0:
                    pending.append(np.int64(target))
    return np.where(waiting > 0, _FAR, depth).astype(np.int32)
