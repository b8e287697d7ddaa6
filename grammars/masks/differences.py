"""Walks from a state and its base state at once, which find the tokens that only one of the two allows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...runtime.automaton_format import DEAD
from ..jit import njit
from ..jit.arrays import longer
from .configurations import ASKED, CONFIGURATIONS_FULL, OPENS, UNDECIDED
from .token_trie import OTHER, QUOTE_FREE
from .unowned import unowned
from .walks import add, append, marks_of, step_of

_FIRST_TOKENS = 1 << 14


class Differences(NamedTuple):
    """`ends[i]` are the ends of three spans of `tokens` for state i: tokens that only it or only its base
    allows, tokens undecided only from the state, and openers only from the state. Each span starts where the
    one before ends. Tokens undecided only from the base are left out: the state may decide them."""

    tokens: NDArray[np.int32]
    ends: NDArray[np.int32]  # [states, 3]


@njit(cache=True, nogil=True)
def walk_differences(context, states, bases, ends_differ):
    """The fields of `Differences` between states and bases, each int32 [n], and False if the configurations
    ran out of capacity (the results are then invalid). `ends_differ`: only one of the two may end."""
    tokens, ends, used = np.empty(_FIRST_TOKENS, np.int32), np.empty((len(states), 3), np.int32), 0
    found = context.buffers
    for i in range(len(states)):
        counts, has_capacity = _walk_both(context, states[i], bases[i])
        if not has_capacity:
            return tokens, ends, False
        if ends_differ[i]:
            counts = (append(found.allowed, counts[0], context.tries.eos), counts[1], counts[2])
        tokens, used = _keep(tokens, used, found, counts, ends[i])
    return tokens[:used], ends, True


@njit(cache=True, nogil=True)
def _keep(tokens, used, found, counts, ends):
    """Appends the buffers to `tokens[:used]` and writes where each span ends. Returns the tokens and how many
    are used."""
    total = used + counts[0] + counts[1] + counts[2]
    if total > len(tokens):
        tokens = longer(tokens, 2 * total)
    used = append(tokens, used, found.allowed[: counts[0]])
    ends[0] = used
    used = append(tokens, used, found.undecided[: counts[1]])
    ends[1] = used
    used = append(tokens, used, found.openers[: counts[2]])
    ends[2] = used
    return tokens, used


@njit(cache=True, nogil=True)
def _walk_both(context, state, base):
    """Walks from both states until both reach the same configuration. Returns the counts of the buffers, and
    False if the configurations ran out of capacity."""
    context = unowned(context)
    groups, transitions, levels = context.groups, context.machine.transitions, context.levels
    levels[0, 0], levels[1, 0] = state, base
    counts = (0, 0, 0)
    for group in range(groups.ends[OTHER], groups.ends[QUOTE_FREE + 1]):
        column = groups.columns[group]
        if transitions[state, column] == transitions[base, column]:
            continue
        for root in range(groups.first[group], groups.first[group + 1]):
            counts, has_capacity = _walk_root(context, groups.nodes[root], column, counts)
            if not has_capacity:
                return (0, 0, 0), False
    return counts, True


@njit(nogil=True, forceinline=True)
def _walk_root(context, node, column, counts):
    """The new counts of the buffers, and False if the configurations ran out of capacity. A walk that ended
    stays `DEAD` or `UNDECIDED` in the whole subtree."""
    tries, machine, levels = context.tries, context.machine, context.levels
    places, base_places, at, until = levels[0], levels[1], levels[2], levels[3]
    level = 0
    while True:
        here = _step_on(machine, context.configurations, places[level], column)
        there = _step_on(machine, context.configurations, base_places[level], column)
        if here == CONFIGURATIONS_FULL or there == CONFIGURATIONS_FULL:
            return counts, False
        if here != there:
            counts = _sort_tokens(context, counts, node, here, there)
        if here != there and (here >= 0 or there >= 0):
            level += 1
            places[level], base_places[level] = here, there
            at[level], until[level] = tries.first_child[node], tries.first_child[node + 1]
        while level > 0 and at[level] == until[level]:
            level -= 1
        if level == 0:
            return counts, True
        node, column = tries.child[at[level]], machine.class_of_byte[tries.child_byte[at[level]]]
        at[level] += 1


@njit(nogil=True, forceinline=True)
def _step_on(machine, configurations, here, column):
    return step_of(machine, configurations, here, column) if here >= 0 else here


@njit(nogil=True, forceinline=True)
def _sort_tokens(context, counts, node, here, there):
    """Adds the tokens of a node to the buffers after the steps of both walks. Returns the new counts."""
    tries, found = context.tries, context.buffers
    differing, undecided, openers = counts
    first, last = tries.token_starts[node], tries.token_starts[node + 1]
    if here == UNDECIDED and there == DEAD:
        last = tries.token_starts[tries.ends[node]]
        return differing, add(found.undecided, undecided, tries.tokens, first, last), openers
    marks, base_marks = marks_of(context, here), marks_of(context, there)
    if there == UNDECIDED or base_marks & ASKED:
        return counts
    if here == UNDECIDED or marks & ASKED:
        return differing, add(found.undecided, undecided, tries.tokens, first, last), openers
    if (here >= 0) != (there >= 0):
        differing = add(found.allowed, differing, tries.tokens, first, last)
    if marks & OPENS and not base_marks & OPENS:
        openers = add(found.openers, openers, tries.tokens, first, last)
    return differing, undecided, openers
