"""Walks from two states at once, which find the tokens that only one of them allows."""

from __future__ import annotations

import numpy as np
from numba import njit

from ..stack_automaton import DEAD
from .configurations import ASKED, FULL, NOT_YET, OPENS, UNDECIDED, follow
from .token_trie import OTHER, PLAIN
from .walks import FIRST_ROOM, add, append, keep


@njit(cache=True, nogil=True)
def walk_differences(tries, roots, machine, configurations, rounds, states, likes, ends_apart, found):  # type: ignore[no-untyped-def]
    """`Walked` of each state beside one that is like it: tokens that only one of the two allows, those
    undecided only from the state, and openers only from it. What is undecided from the other may be
    decided from the state; it is left out. Where `ends_apart`, one of the two allows the ends of sequence.
    And whether there was room for all configurations, without which the rest is worth nothing."""
    tokens, ends, used = np.empty(FIRST_ROOM, np.int32), np.empty((len(states), 3), np.int32), 0
    had_room = True
    for i in range(len(states)):
        counts, has_room = _walk_both(
            tries, roots, OTHER, machine, configurations, rounds, states[i], likes[i], found
        )
        had_room = had_room and has_room
        if ends_apart[i]:
            counts = (append(found.allowed, counts[0], tries.eos), counts[1], counts[2])
        tokens, used = keep(tokens, used, found, counts, ends[i])
    return tokens[:used], ends, np.zeros(len(states), np.bool_), had_room


@njit(cache=True, nogil=True)
def walk_apart(tries, roots, machine, configurations, rounds, state, like, found):  # type: ignore[no-untyped-def]
    """How many plain tokens only one of two states allows, which are in `found`: -1 if something is undecided
    or an opener from `state`, as nothing is from the other; and whether there was room for all
    configurations."""
    counts, had_room = _walk_both(
        tries, roots, PLAIN, machine, configurations, rounds, np.int32(state), np.int32(like), found
    )
    return counts[0] if counts[1] + counts[2] == 0 else -1, had_room


@njit(cache=True, nogil=True)
def _walk_both(tries, roots, first_trie, machine, configurations, rounds, state, like, found):  # type: ignore[no-untyped-def]
    """Two walks at once, which end where both would go on alike: from the same configuration, or as far as
    rounds know. A walk that has come to its end stays `DEAD` or `UNDECIDED` for all that follows below."""
    child_ends, height, token_starts, tokens = tries.ends, tries.height, tries.token_starts, tries.tokens
    first_child, child, child_byte = tries.first_child, tries.child, tries.child_byte
    transitions, class_of_byte = machine.transitions, machine.class_of_byte
    after_action, rows, parts = configurations.after_action, configurations.rows, configurations.parts
    known_places, known, acting = rounds
    is_known = len(known_places) > 0
    differing, undecided, openers = found
    root_nodes, first_root = roots.nodes, roots.first
    places, its_places = np.empty(tries.max_bytes + 1, np.int32), np.empty(tries.max_bytes + 1, np.int32)
    at, until = np.empty(len(places), np.int32), np.empty(len(places), np.int32)
    places[0], its_places[0] = state, like
    states, classes = transitions.shape
    apart = open_questions = opening = 0
    for trie in range(first_trie, PLAIN + 1):
        for root_column in range(classes):
            if transitions[state, root_column] == transitions[like, root_column]:
                continue
            for root in range(first_root[trie, root_column], first_root[trie, root_column + 1]):
                node, column, level = root_nodes[root], root_column, 0
                while True:
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
