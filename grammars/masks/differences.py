"""Walks from a state and its base state at once, which find the tokens that only one of the two allows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...runtime.automaton_format import DEAD
from ..jit import njit
from .configurations import ASKED, CONFIGURATIONS_FULL, OPENS, UNDECIDED
from .token_trie import OTHER, QUOTE_FREE
from .unowned import unowned
from .walks import add, append, marks_of, step_of

_FIRST_TOKENS = 1 << 14
# numba compiles a function anew for each literal argument, but not for these
_FROM_OTHER, _FROM_QUOTE_FREE, _NO_LIMIT = np.int64(OTHER), np.int64(QUOTE_FREE), np.int64(1 << 30)


class Differences(NamedTuple):
    """`ends[i]` are the ends of three spans of `tokens` for state i: tokens that only it or only its base
    allows, tokens undecided only from the state, and openers only from the state. Each span starts where the
    one before ends. Tokens undecided only from the base are left out: the state may decide them."""

    tokens: NDArray[np.int32]
    ends: NDArray[np.int32]  # [states, 3]


@njit(cache=True, nogil=True)
def walk_differences(context, fingerprints, states, bases, ends_differ):  # type: ignore[no-untyped-def]
    """The fields of `Differences` between states and bases, each int32 [n], and False if the configurations
    ran out of capacity (the results are then invalid). `ends_differ`: only one of the two may end."""
    tokens, ends, used = np.empty(_FIRST_TOKENS, np.int32), np.empty((len(states), 3), np.int32), 0
    found = context.buffers
    for i in range(len(states)):
        counts, has_capacity = _walk_both(context, fingerprints, _FROM_OTHER, states[i], bases[i], _NO_LIMIT)
        if not has_capacity:
            return tokens, ends, False
        if ends_differ[i]:
            counts = (append(found.allowed, counts[0], context.tries.eos), counts[1], counts[2])
        tokens, used = _keep(tokens, used, found, counts, ends[i])
    return tokens[:used], ends, True


@njit(cache=True, nogil=True)
def _keep(tokens, used, found, counts, ends):  # type: ignore[no-untyped-def]
    """Appends the buffers to `tokens[:used]` and writes where each span ends. Returns the tokens and how many
    are used."""
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
def walk_quote_free_difference(context, fingerprints, state, base, max_nodes):  # type: ignore[no-untyped-def]
    """How many quote-free tokens, in the buffer `allowed`, only one of two states allows: -1 if `state` has
    undecided tokens or openers (`base` must have none) or if the walk visits more than `max_nodes`. And
    False if the configurations ran out of capacity."""
    state, base = np.int32(state), np.int32(base)
    counts, has_capacity = _walk_both(context, fingerprints, _FROM_QUOTE_FREE, state, base, max_nodes)
    return counts[0] if counts[1] + counts[2] == 0 else -1, has_capacity


@njit(cache=True, nogil=True)
def _walk_both(context, fingerprints, first_trie, state, base, max_nodes):  # type: ignore[no-untyped-def]
    """Walks from both states until both reach the same configuration or fingerprints that agree. Returns the
    counts of the buffers, and False if the configurations ran out of capacity. Beyond `max_nodes` the counts
    are (0, 1, 0), as if a token were undecided."""
    context, fingerprints = unowned((context, fingerprints))
    groups, transitions, levels = context.groups, context.machine.transitions, context.levels
    levels[0, 0], levels[1, 0] = state, base
    counts, visited = (0, 0, 0), 0
    for group in range(groups.ends[first_trie], groups.ends[QUOTE_FREE + 1]):
        column = groups.columns[group]
        if transitions[state, column] == transitions[base, column]:
            continue
        for root in range(groups.first[group], groups.first[group + 1]):
            node = groups.nodes[root]
            counts, visited = _walk_root(context, fingerprints, node, column, counts, visited, max_nodes)
            if visited == CONFIGURATIONS_FULL:
                return (0, 0, 0), False
            if visited > max_nodes:
                return (0, 1, 0), True
    return counts, True


@njit(nogil=True, forceinline=True)
def _walk_root(context, fingerprints, node, column, counts, visited, max_nodes):  # type: ignore[no-untyped-def]
    """The new counts of the buffers, and the number of visited nodes or `CONFIGURATIONS_FULL`. A walk that
    ended stays `DEAD` or `UNDECIDED` in the whole subtree."""
    tries, machine, levels = context.tries, context.machine, context.levels
    places, base_places, at, until = levels[0], levels[1], levels[2], levels[3]
    level = 0
    while visited < max_nodes:
        visited += 1
        here, there = places[level], base_places[level]
        if not _agree(machine, fingerprints, tries.height[node], here, there, column):
            here = _step_on(machine, context.configurations, here, column)
            there = _step_on(machine, context.configurations, there, column)
            if here == CONFIGURATIONS_FULL or there == CONFIGURATIONS_FULL:
                return counts, CONFIGURATIONS_FULL
            if here != there:
                counts = _sort_tokens(context, counts, node, here, there)
            if here != there and (here >= 0 or there >= 0):
                level += 1
                places[level], base_places[level] = here, there
                at[level], until[level] = tries.first_child[node], tries.first_child[node + 1]
        while level > 0 and at[level] == until[level]:
            level -= 1
        if level == 0:
            return counts, visited
        node, column = tries.child[at[level]], machine.class_of_byte[tries.child_byte[at[level]]]
        at[level] += 1
    return counts, visited + 1


@njit(nogil=True, forceinline=True)
def _agree(machine, fingerprints, length, here, there, column):  # type: ignore[no-untyped-def]
    """Whether the fingerprints show that a byte class leads to the same from both, for texts up to a
    length."""
    states = len(machine.transitions)
    if len(fingerprints.row) == 0 or not (0 <= here < states and 0 <= there < states):
        return False
    entry, other = machine.transitions[here, column], machine.transitions[there, column]
    return _fingerprint(fingerprints, length, entry) == _fingerprint(fingerprints, length, other)


@njit(nogil=True, forceinline=True)
def _fingerprint(fingerprints, length, entry):  # type: ignore[no-untyped-def]
    if entry >= 0:
        return fingerprints.states[length, fingerprints.row[entry]]
    return fingerprints.actions[length, -2 - entry] if entry < DEAD else np.uint64(0)


@njit(nogil=True, forceinline=True)
def _step_on(machine, configurations, here, column):  # type: ignore[no-untyped-def]
    return step_of(machine, configurations, here, column) if here >= 0 else here


@njit(nogil=True, forceinline=True)
def _sort_tokens(context, counts, node, here, there):  # type: ignore[no-untyped-def]
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
