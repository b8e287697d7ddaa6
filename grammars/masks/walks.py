"""Walks of the vocabulary's tries from the states of an automaton.

A walk sorts tokens into those that lead somewhere (*allowed*), those whose bytes look below the level of
the stack at which they begin (*undecided*), and among the allowed those that need room on it (*openers*).
Where a set below that level is asked, the walk goes on as if it had agreed: what leads nowhere even then is
not allowed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..stack_automaton import DEAD
from .configurations import ASKED, FULL, NOT_YET, OPENS, UNDECIDED, follow
from .token_trie import OTHER, PLAIN
from .unowned import unowned

NO_LIMIT = 1 << 30


class Machine(NamedTuple):
    """The tables of a `StackAutomaton` that a walk reads."""

    transitions: NDArray[np.int32]
    class_of_byte: NDArray[np.uint8]
    actions: NDArray[np.int32]
    returns: NDArray[np.int32]


class Found(NamedTuple):
    """Room for the tokens that one walk finds."""

    allowed: NDArray[np.int32]
    undecided: NDArray[np.int32]
    openers: NDArray[np.int32]


def room_for(tokens: int) -> Found:
    return Found(*(np.empty(tokens, np.int32) for _ in Found._fields))


class Roots(NamedTuple):
    """Those of trie t for bytes of class c are `nodes[first[t, c]:first[t, c + 1]]`. With their children they
    are `looked[t, c]` nodes."""

    nodes: NDArray[np.int32]
    first: NDArray[np.int32]  # [2, classes + 1]
    looked: NDArray[np.int32]  # [2, classes]


@njit(cache=True, nogil=True)
def roots_by_class(tries, machine):  # type: ignore[no-untyped-def]
    classes = machine.transitions.shape[1]
    in_order = np.argsort(machine.class_of_byte, kind="mergesort")
    nodes, first = np.empty(512, np.int32), np.empty((2, classes + 1), np.int32)
    looked = np.zeros((2, classes), np.int32)
    found = 0
    for trie in (OTHER, PLAIN):
        column = 0
        for byte in in_order:
            while column <= machine.class_of_byte[byte]:
                first[trie, column] = found
                column += 1
            node = tries.roots[trie, byte]
            if node >= 0:
                nodes[found] = node
                found += 1
                looked[trie, column - 1] += 1 + tries.first_child[node + 1] - tries.first_child[node]
        first[trie, column:] = found
    return Roots(nodes, first, looked)


@njit(cache=True, nogil=True)
def append(tokens, count, more):  # type: ignore[no-untyped-def]
    for i in range(len(more)):
        tokens[count + i] = more[i]
    return count + len(more)


@njit(nogil=True, forceinline=True)
def add(found, count, tokens, first, last):  # type: ignore[no-untyped-def]
    """Adds the tokens from `first` on that come before `last`. A node has one or none as a rule: so the first
    is written in any case, which is sooner done than asked, and counts only if it is there."""
    found[count] = tokens[first]
    for place in range(first + 1, last):
        found[count + place - first] = tokens[place]
    return count + last - first


@njit(cache=True, nogil=True)
def walk_plain(tries, roots, machine, configurations, state, found):  # type: ignore[no-untyped-def]
    """How many plain tokens from one state are allowed, undecided, and openers, which are in `found`; and
    whether there was room for all configurations. Takes nodes in their order, as many of them lead on."""
    machine, configurations = unowned((machine, configurations))
    child_ends, depth, byte = tries.ends, tries.depth, tries.byte
    token_starts, tokens = tries.token_starts, tries.tokens
    transitions, class_of_byte = machine.transitions, machine.class_of_byte
    after_action, rows, parts = configurations.after_action, configurations.rows, configurations.parts
    allowed, undecided, openers = found
    places = np.empty(tries.max_bytes + 1, np.int32)
    places[0] = state
    states = len(transitions)
    alive = open_questions = opening = 0
    node = tries.first_plain
    while node < len(child_ends):
        level = depth[node]
        here, column = places[level], class_of_byte[byte[node]]
        if here < states:
            step = transitions[here, column]
            if step < DEAD:
                step = after_action[-2 - step]
        else:
            step = rows[here - states, column]
        if step == NOT_YET:
            step = follow(machine, configurations, here, column)
            if step == FULL:
                return (0, 0, 0), False
        if step < 0:
            if step == UNDECIDED:
                first, last = token_starts[node], token_starts[child_ends[node]]
                open_questions = add(undecided, open_questions, tokens, first, last)
            node = child_ends[node]
            continue
        places[level + 1] = step
        first, last = token_starts[node], token_starts[node + 1]
        marks = parts[step - states, 2] if step >= states else 0
        if marks & ASKED:
            open_questions = add(undecided, open_questions, tokens, first, last)
        else:
            alive = add(allowed, alive, tokens, first, last)
            if marks & OPENS:
                opening = add(openers, opening, tokens, first, last)
        node += 1
    return (alive, open_questions, opening), True
