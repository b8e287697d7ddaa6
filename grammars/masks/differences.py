"""Walks from two states at once, which find the tokens that only one of them allows."""

from __future__ import annotations

import numpy as np
from numba import njit

from ..stack_automaton import DEAD
from .token_trie import PLAIN
from .walks import FIRST_ROOM, UNDECIDED, acted, add_subtree, append, begin, keep, new_levels


@njit(cache=True, nogil=True)
def walk_differences(tries, machine, rounds, states, likes, ends_apart, found):  # type: ignore[no-untyped-def]
    """`Walked` of each state beside one that is like it: tokens that only one of the two allows, those
    undecided only from the state, and openers only from it. What is undecided from the other may be
    decided from the state; it is left out. Where `ends_apart`, one of the two allows the ends of sequence."""
    tokens = np.empty(FIRST_ROOM, np.int32)
    ends = np.empty((len(states), 3), np.int32)
    levels, others = new_levels(tries.max_bytes), new_levels(tries.max_bytes)
    used = 0
    for i in range(len(states)):
        counts = (0, 0, 0)
        for roots in tries.roots:
            counts = _walk_both(
                tries, roots, machine, rounds, states[i], likes[i], levels, others, found, counts
            )
        if ends_apart[i]:
            counts = (append(found.allowed, counts[0], tries.eos), counts[1], counts[2])
        tokens, used = keep(tokens, used, found, counts, ends[i])
    return tokens[:used], ends, np.zeros(len(states), np.bool_)


@njit(cache=True, nogil=True)
def walk_apart(tries, machine, rounds, state, like, found):  # type: ignore[no-untyped-def]
    """How many plain tokens only one of two states allows, which are in `found`: -1 if something is undecided
    or an opener from `state`, as nothing is from the other."""
    levels, others = new_levels(tries.max_bytes), new_levels(tries.max_bytes)
    counts = _walk_both(
        tries, tries.roots[PLAIN], machine, rounds, state, like, levels, others, found, (0, 0, 0)
    )
    return counts[0] if counts[1] + counts[2] == 0 else -1


@njit(cache=True, nogil=True)
def _walk_both(tries, roots, machine, rounds, state, like, levels, others, found, counts):  # type: ignore[no-untyped-def]
    """Two walks at once, which end where both would go on alike: to the same state, or as far as rounds
    know.

    A walk that has come to its end stays `DEAD` or `UNDECIDED` for all that follows below.
    """
    transitions, class_of_byte, actions, returns = machine
    ends, token_starts, tokens = tries.ends, tries.token_starts, tries.tokens
    first_child, child, child_byte = tries.first_child, tries.child, tries.child_byte
    places, known, acting = rounds
    is_known = len(places) > 0
    states, top, asked, pushed, units, value, below = levels
    its_states, its_top, its_asked, its_pushed, its_units, its_value, its_below = others
    differing, undecided, openers = found
    apart, open_questions, opening = counts
    at, until = np.empty(len(states), np.int32), np.empty(len(states), np.int32)
    begin(state, states, top, asked, pushed, units)
    begin(like, its_states, its_top, its_asked, its_pushed, its_units)
    for first in range(256):
        node, column, level = roots[first], class_of_byte[first], 0
        while node >= 0:
            here, there = states[level], its_states[level]
            frame, asks, opens, counted = top[level], asked[level], pushed[level], units[level]
            its_frame, its_asks = its_top[level], its_asked[level]
            its_opens, its_counted = its_pushed[level], its_units[level]
            is_alike = here >= 0 and there >= 0 and frame < 0 and its_frame < 0
            is_alike = is_alike and (its_asks or not asks) and opens == its_opens and counted == its_counted
            if here >= 0:
                here = transitions[here, column]
            if there >= 0:
                there = transitions[there, column]
            if is_alike and here != there:
                length = tries.height[node]
                is_alike = is_known and _signature(places, known, acting, length, here) == _signature(
                    places, known, acting, length, there
                )
            if is_alike:
                here = there = DEAD
            if here < DEAD and states[level] >= 0:
                here, frame, asks, opens, counted = acted(
                    actions, returns, -2 - here, level, frame, asks, opens, counted, value, below
                )
            if there < DEAD and its_states[level] >= 0:
                there, its_frame, its_asks, its_opens, its_counted = acted(
                    actions, returns, -2 - there, level,
                    its_frame, its_asks, its_opens, its_counted, its_value, its_below,
                )  # fmt: skip
            if here == UNDECIDED and there == DEAD:
                open_questions = add_subtree(undecided, open_questions, ends, token_starts, tokens, node)
            elif here >= 0 or there >= 0:
                level += 1
                at[level], until[level] = first_child[node], first_child[node + 1]
                states[level], its_states[level] = here, there
                top[level], asked[level], pushed[level], units[level] = frame, asks, opens, counted
                its_top[level], its_asked[level] = its_frame, its_asks
                its_pushed[level], its_units[level] = its_opens, its_counted
                opens = opens and here >= 0 and not (its_opens and there >= 0)
                for position in range(token_starts[node], token_starts[node + 1]):
                    if there == UNDECIDED or (its_asks and there >= 0):
                        continue
                    if here == UNDECIDED or (asks and here >= 0):
                        undecided[open_questions] = tokens[position]
                        open_questions += 1
                        continue
                    if (here >= 0) != (there >= 0):
                        differing[apart] = tokens[position]
                        apart += 1
                    if opens:
                        openers[opening] = tokens[position]
                        opening += 1
            while level > 0 and at[level] == until[level]:
                level -= 1
            if level == 0:
                break
            node, column = child[at[level]], class_of_byte[child_byte[at[level]]]
            at[level] += 1
    return apart, open_questions, opening


@njit(nogil=True, forceinline=True)
def _signature(places, known, acting, length, entry):  # type: ignore[no-untyped-def]
    if entry >= 0:
        return known[length, places[entry]]
    return acting[length, -2 - entry] if entry < DEAD else np.uint64(0)
