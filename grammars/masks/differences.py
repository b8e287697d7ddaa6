"""Walks from two states at once, which find the tokens that only one of them allows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..machine.stack_automaton import DEAD
from .configurations import ASKED, FULL, OPENS, UNDECIDED
from .token_trie import OTHER, PLAIN
from .unowned import unowned
from .walks import NO_LIMIT, add, append, step_of

_FIRST_ROOM = 1 << 14


class Apart(NamedTuple):
    """What walks from several states found: three spans of `tokens` for each.

    `ends[i]` are the ends of what differs, is undecided and openers for state i; each begins where the one
    before ends.
    """

    tokens: NDArray[np.int32]
    ends: NDArray[np.int32]  # [states, 3]


@njit(cache=True, nogil=True)
def walk_differences(tries, roots, machine, configurations, rounds, states, likes, ends_apart, found):  # type: ignore[no-untyped-def]
    """`Apart` of each state beside one that is like it: tokens that only one of the two allows, those
    undecided only from the state, and openers only from it. What is undecided from the other may be
    decided from the state; it is left out. Where `ends_apart`, one of the two allows the ends of sequence.
    And whether there was room for all configurations, without which the rest is worth nothing."""
    tokens, ends, used = np.empty(_FIRST_ROOM, np.int32), np.empty((len(states), 3), np.int32), 0
    levels = np.empty((4, tries.max_bytes + 1), np.int32)
    tables = (tries, roots, machine, configurations, rounds, found)
    for i in range(len(states)):
        counts, has_room = _walk_both(*tables, levels, OTHER, states[i], likes[i], NO_LIMIT)
        if not has_room:
            return tokens, ends, False
        if ends_apart[i]:
            counts = (append(found.allowed, counts[0], tries.eos), counts[1], counts[2])
        tokens, used = _keep(tokens, used, found, counts, ends[i])
    return tokens[:used], ends, True


@njit(cache=True, nogil=True)
def _keep(tokens, used, found, counts, ends):  # type: ignore[no-untyped-def]
    """The tokens with what was found behind them, and how many they are now; notes where each part ends."""
    total = used + counts[0] + counts[1] + counts[2]
    if total > len(tokens):
        longer = np.empty(2 * total, np.int32)
        longer[:used] = tokens[:used]
        tokens = longer
    used = append(tokens, used, found.allowed[: counts[0]])
    ends[0] = used
    used = append(tokens, used, found.undecided[: counts[1]])
    ends[1] = used
    used = append(tokens, used, found.openers[: counts[2]])
    ends[2] = used
    return tokens, used


@njit(cache=True, nogil=True)
def walk_apart(tries, roots, machine, configurations, rounds, state, like, found, most):  # type: ignore[no-untyped-def]
    """How many plain tokens only one of two states allows, which are in `found`: -1 if something is undecided
    or an opener from `state`, as nothing is from the other, or if that looks at more than `most` nodes; and
    whether there was room for all configurations."""
    levels = np.empty((4, tries.max_bytes + 1), np.int32)
    tables = (tries, roots, machine, configurations, rounds, found)
    counts, had_room = _walk_both(*tables, levels, PLAIN, np.int32(state), np.int32(like), most)
    return counts[0] if counts[1] + counts[2] == 0 else -1, had_room


@njit(cache=True, nogil=True)
def _walk_both(tries, roots, machine, configurations, rounds, found, levels, first_trie, state, like, most):  # type: ignore[no-untyped-def]
    """Two walks at once, which end where both would go on alike: from the same configuration, or as far as
    rounds know. A walk that has come to its end stays `DEAD` or `UNDECIDED` for all that follows below. If
    they look at more than `most` nodes something is undecided, and that is all that is found."""
    tables = (tries, roots, machine, configurations, rounds, found, levels)
    tries, roots, machine, configurations, rounds, found, levels = unowned(tables)
    transitions = machine.transitions
    levels[0, 0], levels[1, 0] = state, like
    counts, looked = (0, 0, 0), 0
    for way in range(roots.ways[first_trie], roots.ways[PLAIN + 1]):
        column = roots.columns[way]
        if transitions[state, column] == transitions[like, column]:
            continue
        for root in range(roots.first[way], roots.first[way + 1]):
            node = roots.nodes[root]
            counts, looked = _walk_root(
                tries, machine, configurations, rounds, found, levels, node, column, counts, looked, most
            )
            if looked == FULL:
                return (0, 0, 0), False
            if looked > most:
                return (0, 1, 0), True
    return counts, True


@njit(nogil=True, forceinline=True)
def _walk_root(  # type: ignore[no-untyped-def]
    tries, machine, configurations, rounds, found, levels, node, column, counts, looked, most
):
    """The counts of what was found so far, and of nodes that were looked at, or `FULL`."""
    places, its_places, at, until = levels[0], levels[1], levels[2], levels[3]
    states, level = len(machine.transitions), 0
    while looked < most:
        looked += 1
        here, there = places[level], its_places[level]
        if not _are_alike(machine, rounds, tries.height[node], here, there, column):
            here = _step_on(machine, configurations, here, column)
            there = _step_on(machine, configurations, there, column)
            if here == FULL or there == FULL:
                return counts, FULL
            if here != there:
                counts = _sort_apart(tries, configurations.parts, states, found, counts, node, here, there)
            if here != there and (here >= 0 or there >= 0):
                level += 1
                places[level], its_places[level] = here, there
                at[level], until[level] = tries.first_child[node], tries.first_child[node + 1]
        while level > 0 and at[level] == until[level]:
            level -= 1
        if level == 0:
            return counts, looked
        node, column = tries.child[at[level]], machine.class_of_byte[tries.child_byte[at[level]]]
        at[level] += 1
    return counts, looked + 1


@njit(nogil=True, forceinline=True)
def _are_alike(machine, rounds, length, here, there, column):  # type: ignore[no-untyped-def]
    """Whether rounds know that a class of bytes leads to the same from both, for texts up to a length."""
    states = len(machine.transitions)
    if len(rounds.place) == 0 or not (0 <= here < states and 0 <= there < states):
        return False
    entry, other = machine.transitions[here, column], machine.transitions[there, column]
    return _signature(rounds, length, entry) == _signature(rounds, length, other)


@njit(nogil=True, forceinline=True)
def _signature(rounds, length, entry):  # type: ignore[no-untyped-def]
    if entry >= 0:
        return rounds.states[length, rounds.place[entry]]
    return rounds.actions[length, -2 - entry] if entry < DEAD else np.uint64(0)


@njit(nogil=True, forceinline=True)
def _step_on(machine, configurations, here, column):  # type: ignore[no-untyped-def]
    return step_of(machine, configurations, here, column) if here >= 0 else here


@njit(nogil=True, forceinline=True)
def _sort_apart(tries, parts, states, found, counts, node, here, there):  # type: ignore[no-untyped-def]
    """Adds the tokens of a node that steps tell apart to what was found: `counts` are how many, before and
    after."""
    differing, undecided, openers = counts
    first, last = tries.token_starts[node], tries.token_starts[node + 1]
    if here == UNDECIDED and there == DEAD:
        last = tries.token_starts[tries.ends[node]]
        return differing, add(found.undecided, undecided, tries.tokens, first, last), openers
    marks = parts[here - states, 2] if here >= states else 0
    its_marks = parts[there - states, 2] if there >= states else 0
    if there == UNDECIDED or its_marks & ASKED:
        return counts
    if here == UNDECIDED or marks & ASKED:
        return differing, add(found.undecided, undecided, tries.tokens, first, last), openers
    if (here >= 0) != (there >= 0):
        differing = add(found.allowed, differing, tries.tokens, first, last)
    if marks & OPENS and not its_marks & OPENS:
        openers = add(found.openers, openers, tries.tokens, first, last)
    return differing, undecided, openers
