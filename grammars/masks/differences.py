"""Walks from two states at once, which find the tokens that only one of them allows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..stack_automaton import DEAD
from .configurations import ASKED, FULL, NOT_YET, OPENS, UNDECIDED, follow
from .token_trie import OTHER, PLAIN
from .unowned import unowned
from .walks import NO_LIMIT, add, append

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
    tables = unowned((tries, roots, machine, configurations, rounds, found))
    for i in range(len(states)):
        counts, has_room = _walk_both(*tables, levels, OTHER, states[i], likes[i], NO_LIMIT)  # type: ignore[call-arg]
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
    tables = unowned((tries, roots, machine, configurations, rounds, found))
    counts, had_room = _walk_both(*tables, levels, PLAIN, np.int32(state), np.int32(like), most)  # type: ignore[call-arg]
    return counts[0] if counts[1] + counts[2] == 0 else -1, had_room


@njit(cache=True, nogil=True)
def _walk_both(tries, roots, machine, configurations, rounds, found, levels, first_trie, state, like, most):  # type: ignore[no-untyped-def]
    """Two walks at once, which end where both would go on alike: from the same configuration, or as far as
    rounds know. A walk that has come to its end stays `DEAD` or `UNDECIDED` for all that follows below. If
    they look at more than `most` nodes something is undecided, and that is all that is found."""
    child_ends, height, token_starts, tokens = tries.ends, tries.height, tries.token_starts, tries.tokens
    first_child, child, child_byte = tries.first_child, tries.child, tries.child_byte
    transitions, class_of_byte = machine.transitions, machine.class_of_byte
    after_action, rows, parts = configurations.after_action, configurations.rows, configurations.parts
    known_places, known, acting = rounds
    is_known = len(known_places) > 0
    differing, undecided, openers = found
    root_nodes, first_root = roots.nodes, roots.first
    places, its_places, at, until = levels[0], levels[1], levels[2], levels[3]
    places[0], its_places[0] = state, like
    states, classes = transitions.shape
    apart = open_questions = opening = looked = 0
    for trie in range(first_trie, PLAIN + 1):
        for root_column in range(classes):
            if transitions[state, root_column] == transitions[like, root_column]:
                continue
            for root in range(first_root[trie, root_column], first_root[trie, root_column + 1]):
                node, column, level = root_nodes[root], root_column, 0
                while True:
                    looked += 1
                    if looked > most:
                        return (0, 1, 0), True
                    here, there = places[level], its_places[level]
                    is_alike = False
                    if is_known and 0 <= here < states and 0 <= there < states:
                        entry, other = transitions[here, column], transitions[there, column]
                        length = height[node]
                        is_alike = _signature(known_places, known, acting, length, entry) == _signature(
                            known_places, known, acting, length, other
                        )
                    if not is_alike:
                        here = _step(transitions, after_action, rows, here, column)
                        there = _step(transitions, after_action, rows, there, column)
                        if here == NOT_YET:
                            here = follow(machine, configurations, places[level], column)
                        if there == NOT_YET:
                            there = follow(machine, configurations, its_places[level], column)
                        if here == FULL or there == FULL:
                            return (0, 0, 0), False
                        is_alike = here == there
                    if not is_alike and here == UNDECIDED and there == DEAD:
                        first, last = token_starts[node], token_starts[child_ends[node]]
                        open_questions = add(undecided, open_questions, tokens, first, last)
                    elif not is_alike and (here >= 0 or there >= 0):
                        level += 1
                        places[level], its_places[level] = here, there
                        at[level], until[level] = first_child[node], first_child[node + 1]
                        first, last = token_starts[node], token_starts[node + 1]
                        marks = parts[here - states, 2] if here >= states else 0
                        its_marks = parts[there - states, 2] if there >= states else 0
                        if there == UNDECIDED or its_marks & ASKED:
                            pass
                        elif here == UNDECIDED or marks & ASKED:
                            open_questions = add(undecided, open_questions, tokens, first, last)
                        else:
                            if (here >= 0) != (there >= 0):
                                apart = add(differing, apart, tokens, first, last)
                            if marks & OPENS and not its_marks & OPENS:
                                opening = add(openers, opening, tokens, first, last)
                    while level > 0 and at[level] == until[level]:
                        level -= 1
                    if level == 0:
                        break
                    node, column = child[at[level]], class_of_byte[child_byte[at[level]]]
                    at[level] += 1
    return (apart, open_questions, opening), True


@njit(nogil=True, forceinline=True)
def _step(transitions, after_action, rows, here, column):  # type: ignore[no-untyped-def]
    if here < 0:
        return here
    if here >= len(transitions):
        return rows[here - len(transitions), column]
    step = transitions[here, column]
    return after_action[-2 - step] if step < DEAD else step


@njit(nogil=True, forceinline=True)
def _signature(places, known, acting, length, entry):  # type: ignore[no-untyped-def]
    if entry >= 0:
        return known[length, places[entry]]
    return acting[length, -2 - entry] if entry < DEAD else np.uint64(0)
