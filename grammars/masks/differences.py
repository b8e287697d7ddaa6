"""Walks from two states at once, which find the tokens that only one of them allows."""

from __future__ import annotations

import numpy as np
from numba import njit

from ..stack_automaton import DEAD
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
        for trie in (tries.other, tries.plain):
            counts = _walk_both(trie, machine, rounds, states[i], likes[i], levels, others, found, counts)
        if ends_apart[i]:
            counts = (append(found.allowed, counts[0], tries.eos), counts[1], counts[2])
        tokens, used = keep(tokens, used, found, counts, ends[i])
    return tokens[:used], ends, np.zeros(len(states), np.bool_)


@njit(cache=True, nogil=True)
def walk_apart(tries, machine, rounds, state, like, found):  # type: ignore[no-untyped-def]
    """How many plain tokens only one of two states allows, which are in `found`: -1 if something is undecided
    or an opener from `state`, as nothing is from the other."""
    levels, others = new_levels(tries.max_bytes), new_levels(tries.max_bytes)
    counts = _walk_both(tries.plain, machine, rounds, state, like, levels, others, found, (0, 0, 0))
    return counts[0] if counts[1] + counts[2] == 0 else -1


@njit(cache=True, nogil=True)
def _walk_both(trie, machine, rounds, state, like, levels, others, found, counts):  # type: ignore[no-untyped-def]
    """Two walks at once, which end where both would go on alike: to the same state, or as far as rounds
    know.

    A walk that has come to its end stays `DEAD` or `UNDECIDED` for all that follows below.
    """
    byte, depth, height, ends, token_starts, tokens, roots = trie
    transitions, class_of_byte, actions, returns = machine
    places, known, acting = rounds
    is_known = len(places) > 0
    states, top, asked, pushed, units, value, below = levels
    its_states, its_top, its_asked, its_pushed, its_units, its_value, its_below = others
    differing, undecided, openers = found
    apart, open_questions, opening = counts
    begin(state, states, top, asked, pushed, units)
    begin(like, its_states, its_top, its_asked, its_pushed, its_units)
    for first in range(256):
        node = roots[first]
        column = class_of_byte[first]
        if node < 0 or transitions[state, column] == transitions[like, column]:
            continue
        last = ends[node]
        while node < last:
            level = depth[node]
            column = class_of_byte[byte[node]]
            here, there = states[level], its_states[level]
            frame, asks, opens, counted = top[level], asked[level], pushed[level], units[level]
            its_frame, its_asks = its_top[level], its_asked[level]
            its_opens, its_counted = its_pushed[level], its_units[level]
            if here >= 0:
                here = transitions[here, column]
            if there >= 0:
                there = transitions[there, column]
            both = states[level] >= 0 and its_states[level] >= 0 and frame < 0 and its_frame < 0
            if both and (its_asks or not asks) and opens == its_opens and counted == its_counted:
                is_alike = here == there
                if is_known and not is_alike:
                    length = height[node]
                    signature, its_signature = np.uint64(0), np.uint64(0)
                    if here >= 0:
                        signature = known[length, places[here]]
                    elif here < DEAD:
                        signature = acting[length, -2 - here]
                    if there >= 0:
                        its_signature = known[length, places[there]]
                    elif there < DEAD:
                        its_signature = acting[length, -2 - there]
                    is_alike = signature == its_signature
                if is_alike:
                    node = ends[node]
                    continue
            if here < DEAD and states[level] >= 0:
                here, frame, asks, opens, counted = acted(
                    actions, returns, -2 - here, level, frame, asks, opens, counted, value, below
                )
            if there < DEAD and its_states[level] >= 0:
                there, its_frame, its_asks, its_opens, its_counted = acted(
                    actions, returns, -2 - there, level,
                    its_frame, its_asks, its_opens, its_counted, its_value, its_below,
                )  # fmt: skip
            if here < 0 and there < 0:
                if here == UNDECIDED and there == DEAD:
                    open_questions = add_subtree(undecided, open_questions, ends, token_starts, tokens, node)
                node = ends[node]
                continue
            states[level + 1], its_states[level + 1] = here, there
            top[level + 1], asked[level + 1] = frame, asks
            pushed[level + 1], units[level + 1] = opens, counted
            its_top[level + 1], its_asked[level + 1] = its_frame, its_asks
            its_pushed[level + 1], its_units[level + 1] = its_opens, its_counted
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
            node += 1
    return apart, open_questions, opening
