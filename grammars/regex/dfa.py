"""Deterministic automata over code points, and their boolean operations.

Code points are grouped into intervals that no transition tells apart, so an automaton over all of
Unicode has a handful of columns.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import TooLargeError
from ..jit import njit
from ..jit.arrays import distinct_rows, grow_rows, longer, no_rows, number_next, sort_by_key
from .partition import equal_futures, list_edges

MAX_STATES = 6_000
MAX_CELLS = 4_000_000
REJECT = -1
DEAD = -1

State = TypeVar("State", bound=Hashable)


@dataclass(frozen=True, eq=False)
class Dfa:
    """State 0 is the start. `labels[state]` is the label of a text that ends there, or `REJECT`.

    The code points from `cuts[i]` up to the next cut belong to class `class_of_cut[i]`.
    """

    cuts: NDArray[np.int32]  # ascending code points, the first is 0
    class_of_cut: NDArray[np.int32]
    transitions: NDArray[np.int32]  # [states, classes]: a state or DEAD
    labels: NDArray[np.int32]  # [states]: the label of each state

    def label(self, text: str) -> int:
        points = np.array([ord(character) for character in text], np.int32)
        return int(_label(self.cuts, self.class_of_cut, self.transitions, self.labels, points))


@njit(cache=True)
def _label(cuts, class_of_cut, transitions, labels, points):
    state = 0
    for point in points:
        state = transitions[state, class_of_cut[np.searchsorted(cuts, point, "right") - 1]]
        if state < 0:
            return REJECT
    return labels[state]


def explore(
    cuts: Sequence[int],
    class_of_cut: Sequence[int],
    start: State,
    following: Callable[[State, int], State | None],
    label: Callable[[State], int],
) -> Dfa:
    """The automaton of all states that `following(state, class)` reaches."""
    classes = max(class_of_cut) + 1
    number: dict[State, int] = {start: 0}
    order = [start]
    rows: list[list[int]] = []
    for state in order:
        row = []
        for column in range(classes):
            target = following(state, column)
            if target is None:
                row.append(DEAD)
                continue
            if target not in number:
                number[target] = len(order)
                order.append(target)
            row.append(number[target])
        rows.append(row)
        if len(order) > MAX_STATES:
            raise TooLargeError(f"more than {MAX_STATES} states in a string or number")
    return Dfa(
        np.array(cuts, np.int32),
        np.array(class_of_cut, np.int32),
        np.array(rows, np.int32),
        np.array([label(state) for state in order], np.int32),
    )


def constant(label: int) -> Dfa:
    """The automaton that gives every text this label."""
    return Dfa(
        np.zeros(1, np.int32), np.zeros(1, np.int32), np.zeros((1, 1), np.int32), np.array([label], np.int32)
    )


NOTHING = constant(REJECT)
ANYTHING = constant(0)


def complement(dfa: Dfa) -> Dfa:
    return combine(dfa, NOTHING, lambda left, _: REJECT if left >= 0 else 0)


def intersect(left: Dfa, right: Dfa) -> Dfa:
    """The automaton of the texts that both automata accept, with the labels of `left`."""
    return combine(left, right, lambda a, b: a if a >= 0 and b >= 0 else REJECT)


def unite(left: Dfa, right: Dfa) -> Dfa:
    return combine(left, right, lambda a, b: a if a >= 0 else b)


def combine(left: Dfa, right: Dfa, label: Callable[[int, int], int]) -> Dfa:
    """The minimal product, in which a text's label is `label(left's, right's)`."""
    cuts, left_class, right_class, class_of_cut = _common_classes(
        left.cuts, left.class_of_cut, right.cuts, right.class_of_cut
    )
    every_pair = (len(left.labels) + 1) * (len(right.labels) + 1)
    limit = min(every_pair + 1, MAX_STATES * 4, MAX_CELLS // len(left_class))
    pairs, transitions = _product(left.transitions, right.transitions, left_class, right_class, limit)
    if len(pairs) >= limit:
        raise TooLargeError(f"{limit} states in a product of strings or numbers")
    most_left, most_right = int(left.labels.max()), int(right.labels.max())
    table = np.array(
        [[label(a, b) for b in range(-1, most_right + 1)] for a in range(-1, most_left + 1)], np.int32
    )
    of_left = np.append(left.labels, np.int32(REJECT))[pairs[:, 0]]
    of_right = np.append(right.labels, np.int32(REJECT))[pairs[:, 1]]
    return minimize(Dfa(cuts, class_of_cut, transitions, table[of_left + 1, of_right + 1]))


@njit(cache=True)
def _common_classes(left_cuts, left_classes, right_cuts, right_classes):
    """The cuts of both, the left and right class of each joint class, and the joint class of each cut."""
    most = len(left_cuts) + len(right_cuts)
    cuts, class_of_cut = np.empty(most, np.int32), np.empty(most, np.int32)
    of_left, of_right = np.empty(most, np.int32), np.empty(most, np.int32)
    joint = np.full((left_classes.max() + 1, right_classes.max() + 1), -1, np.int32)
    found = classes = left = right = 0
    while left < len(left_cuts) or right < len(right_cuts):
        takes_left = right == len(right_cuts) or (
            left < len(left_cuts) and left_cuts[left] <= right_cuts[right]
        )
        cuts[found] = left_cuts[left] if takes_left else right_cuts[right]
        if left < len(left_cuts) and left_cuts[left] == cuts[found]:
            left += 1
        if right < len(right_cuts) and right_cuts[right] == cuts[found]:
            right += 1
        pair = left_classes[left - 1], right_classes[right - 1]
        if joint[pair] < 0:
            joint[pair] = classes
            of_left[classes], of_right[classes] = pair
            classes += 1
        class_of_cut[found] = joint[pair]
        found += 1
    return (
        cuts[:found].copy(),
        of_left[:classes].copy(),
        of_right[:classes].copy(),
        class_of_cut[:found].copy(),
    )


@njit(cache=True)
def _product(left, right, left_class, right_class, limit):
    """The pairs reached from (0, 0), and their transitions. In a pair, an automaton's number of states is its
    dead state. The search stops at `limit` pairs."""
    n_left, n_right, classes = len(left), len(right), len(left_class)
    pairs = no_rows(np.zeros((64, 2), np.int32))
    transitions = np.empty((64, classes), np.int32)
    current = number_next(pairs)
    while current < pairs.used[0] and pairs.used[0] < limit:
        if current == len(transitions):
            transitions = longer(transitions, 2 * current)
        a, b = pairs.rows[current, 0], pairs.rows[current, 1]
        for column in range(classes):
            if pairs.used[0] == len(pairs.rows):
                pairs = grow_rows(pairs)
            to_left = left[a, left_class[column]] if a < n_left else DEAD
            to_right = right[b, right_class[column]] if b < n_right else DEAD
            pairs.rows[pairs.used[0], 0] = to_left if to_left >= 0 else n_left
            pairs.rows[pairs.used[0], 1] = to_right if to_right >= 0 else n_right
            transitions[current, column] = number_next(pairs)
        current += 1
    return pairs.rows[: pairs.used[0]].copy(), transitions[:current].copy()


def minimize(dfa: Dfa) -> Dfa:
    """The automaton with the fewest states and classes; states that reach no label are dropped."""
    transitions, labels = minimize_table(dfa.transitions, dfa.labels)
    if not len(labels):
        return NOTHING
    columns, inverse = distinct_columns(transitions)
    class_of_cut = inverse.astype(np.int32)[dfa.class_of_cut]
    changed = np.concatenate(([True], class_of_cut[1:] != class_of_cut[:-1]))
    rows = np.take(transitions, columns, axis=1)
    return Dfa(dfa.cuts[changed], class_of_cut[changed], rows, labels)


@njit(cache=True)
def distinct_columns(table):
    """The first index of each distinct column of int32 [rows, columns], and for each column its place among
    them; int64. Columns are compared by a 64-bit hash."""
    return distinct_rows(_column_hashes(table).reshape(-1, 1))


def spread(numbers: NDArray[np.integer]) -> NDArray[np.uint64]:
    """A hash of each number."""
    hashes = numbers.astype(np.uint64)
    for _ in range(2):
        hashes = (hashes ^ (hashes >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    return hashes


@njit(cache=True)
def _column_hashes(table):
    hashes = np.zeros(table.shape[1], np.uint64)
    for row in table:
        for column in range(len(row)):
            hashes[column] = (hashes[column] + np.uint64(row[column] + 3)) * np.uint64(0x9E3779B97F4A7C15)
            hashes[column] ^= hashes[column] >> np.uint64(29)
    return hashes


@njit(cache=True)
def minimize_table(transitions, labels):
    """The table with equal states merged, numbered from the start; empty if the start reaches no label."""
    alive = alive_states(transitions, labels)
    if not alive[0]:
        return transitions[:0].copy(), labels[:0].copy()
    kept = transitions.copy()
    for state in range(len(kept)):
        for column in range(kept.shape[1]):
            if kept[state, column] >= 0 and not alive[kept[state, column]]:
                kept[state, column] = DEAD
    block = equal_futures(kept, labels)
    order = _number_blocks(kept, block)
    number = np.full(block.max() + 1, -1, np.int32)
    for place in range(len(order)):
        number[block[order[place]]] = place
    merged = np.empty((len(order), kept.shape[1]), np.int32)
    for place in range(len(order)):
        for column in range(kept.shape[1]):
            target = kept[order[place], column]
            merged[place, column] = number[block[target]] if target >= 0 else target
    return merged, labels[order]


@njit(cache=True)
def alive_states(transitions, labels):
    """Whether each state reaches a label or an exit, by a search against the edges."""
    alive = labels >= 0
    for state in range(len(transitions)):
        for target in transitions[state]:
            if target < DEAD:
                alive[state] = True
    tails, _, heads = list_edges(transitions)
    first, order = sort_by_key(heads, len(labels))
    pending = [np.int64(final) for final in np.flatnonzero(alive)]
    while len(pending) > 0:
        reached = pending.pop()
        for position in range(first[reached], first[reached + 1]):
            source = tails[order[position]]
            if not alive[source]:
                alive[source] = True
                pending.append(np.int64(source))
    return alive


@njit(cache=True)
def _number_blocks(transitions, block):
    """One state of each block that is reached, in breadth-first order."""
    seen = np.zeros(block.max() + 1, np.bool_)
    order = np.empty(block.max() + 1, np.int64)
    order[0] = 0
    seen[block[0]] = True
    found = 1
    current = 0
    while current < found:
        state = order[current]
        for column in range(transitions.shape[1]):
            target = transitions[state, column]
            if target >= 0 and not seen[block[target]]:
                seen[block[target]] = True
                order[found] = target
                found += 1
        current += 1
    return order[:found]
