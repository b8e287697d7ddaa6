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

from ..machine.stack_automaton import DEAD
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
    """Way w into a trie takes bytes of class `columns[w]`, to the nodes `nodes[first[w]:first[w + 1]]`. With
    their children those are `looked[w]`. Trie t has the ways from `ways[t]` up to `ways[t + 1]`."""

    nodes: NDArray[np.int32]
    first: NDArray[np.int32]  # [ways + 1]
    columns: NDArray[np.int32]  # [ways]
    looked: NDArray[np.int32]  # [ways]
    ways: NDArray[np.int32]  # [3]


@njit(cache=True, nogil=True)
def roots_by_class(tries, machine):  # type: ignore[no-untyped-def]
    in_order = np.argsort(machine.class_of_byte, kind="mergesort")
    nodes, first, columns = np.empty(512, np.int32), np.empty(513, np.int32), np.empty(512, np.int32)
    looked, ways = np.zeros(512, np.int32), np.zeros(3, np.int32)
    found = way = 0
    for trie in (OTHER, PLAIN):
        for byte in in_order:
            node, column = tries.roots[trie, byte], machine.class_of_byte[byte]
            if node < 0:
                continue
            if way == ways[trie] or columns[way - 1] != column:
                first[way], columns[way] = found, column
                way += 1
            nodes[found] = node
            found += 1
            looked[way - 1] += 1 + tries.first_child[node + 1] - tries.first_child[node]
        ways[trie + 1] = way
    first[way] = found
    return Roots(nodes, first[: way + 1], columns[:way], looked[:way], ways)


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


@njit(nogil=True, forceinline=True)
def step_of(machine, configurations, here, column):  # type: ignore[no-untyped-def]
    """Where a class of bytes leads from a configuration; `FULL` if there is no room for it."""
    states = len(machine.transitions)
    if here < states:
        step = machine.transitions[here, column]
        if step < DEAD:
            step = configurations.after_action[-2 - step]
    else:
        step = configurations.rows[here - states, column]
    return follow(machine, configurations, here, column) if step == NOT_YET else step


@njit(nogil=True, forceinline=True)
def sort_tokens(tries, parts, states, found, counts, node, step):  # type: ignore[no-untyped-def]
    """Adds the tokens of a node to which a step led, and of those below where that is undecided, to what was
    found: `counts` are how many, before and after."""
    alive, undecided, openers = counts
    first = tries.token_starts[node]
    if step == UNDECIDED:
        last = tries.token_starts[tries.ends[node]]
        return alive, add(found.undecided, undecided, tries.tokens, first, last), openers
    last = tries.token_starts[node + 1]
    marks = parts[step - states, 2] if step >= states else 0
    if marks & ASKED:
        return alive, add(found.undecided, undecided, tries.tokens, first, last), openers
    if marks & OPENS:
        openers = add(found.openers, openers, tries.tokens, first, last)
    return add(found.allowed, alive, tries.tokens, first, last), undecided, openers


@njit(nogil=True, forceinline=True)
def walk_in_order(tries, machine, configurations, found, counts, places, node, stop):  # type: ignore[no-untyped-def]
    """Adds what is found from `places[0]` by the nodes up to `stop`, in their order; and whether there was
    room for all configurations."""
    states = len(machine.transitions)
    while node < stop:
        level = tries.depth[node]
        step = step_of(machine, configurations, places[level], machine.class_of_byte[tries.byte[node]])
        if step == FULL:
            return counts, False
        if step != DEAD:
            counts = sort_tokens(tries, configurations.parts, states, found, counts, node, step)
        places[level + 1] = step
        node = node + 1 if step >= 0 else tries.ends[node]
    return counts, True


@njit(cache=True, nogil=True)
def walk_plain(tries, roots, machine, configurations, state, found):  # type: ignore[no-untyped-def]
    """How many plain tokens from one state are allowed, undecided, and openers, which are in `found`; and
    whether there was room for all configurations. Takes nodes in their order, as many of them lead on."""
    tries, machine, configurations, found = unowned((tries, machine, configurations, found))
    places = np.empty(tries.max_bytes + 1, np.int32)
    places[0] = state
    first, stop = tries.first_plain, len(tries.ends)
    return walk_in_order(tries, machine, configurations, found, (0, 0, 0), places, first, stop)
