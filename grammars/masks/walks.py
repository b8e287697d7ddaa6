"""Walks of the vocabulary's tries from the states of an automaton: the tables they use and their steps.

A walk sorts tokens into those that the automaton accepts from here (*allowed*), those whose bytes pop what
was on the stack before the walk began (*undecided*), and the allowed ones that need free places on the stack
(*openers*). Where an action tests a set of names from before the walk, the walk goes on as if the test had
succeeded: a token that fails even then is not allowed, any other is undecided.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...runtime.automaton_format import DEAD
from ..jit import njit
from .configurations import ASKED, CONFIGURATIONS_FULL, NOT_COMPUTED, OPENS, UNDECIDED, Configurations, follow
from .token_trie import OTHER, QUOTE_FREE, TokenTries
from .unowned import unowned


class Machine(NamedTuple):
    """The tables of a `StackAutomaton` that a walk reads."""

    transitions: NDArray[np.int32]
    class_of_byte: NDArray[np.uint8]
    actions: NDArray[np.int32]
    returns: NDArray[np.int32]


class Buffers(NamedTuple):
    """The tokens that one walk finds."""

    allowed: NDArray[np.int32]
    undecided: NDArray[np.int32]
    openers: NDArray[np.int32]


def make_buffers(tokens: int) -> Buffers:
    return Buffers(*(np.empty(tokens, np.int32) for _ in Buffers._fields))


class RootGroups(NamedTuple):
    """The roots of a trie whose bytes have the same class. Group g takes byte class `columns[g]` to the nodes
    `nodes[first[g]:first[g + 1]]`. Trie t has the groups from `ends[t]` up to `ends[t + 1]`."""

    nodes: NDArray[np.int32]
    first: NDArray[np.int32]  # [groups + 1]: index of the first node of each group
    columns: NDArray[np.int32]  # [groups]: the byte class of each group
    sizes: NDArray[np.int32]  # [groups]: number of nodes and their children
    ends: NDArray[np.int32]  # [3]: where each trie's groups begin


class Context(NamedTuple):
    """All tables and buffers that walks of one automaton read and write."""

    tries: TokenTries
    groups: RootGroups
    machine: Machine
    configurations: Configurations
    buffers: Buffers
    levels: NDArray[np.int32]  # [3, longest token + 1]: where a walk is at each depth of the trie


@njit(cache=True, nogil=True)
def root_groups(tries, machine):
    in_order = np.argsort(machine.class_of_byte, kind="mergesort")
    nodes, first, columns = np.empty(512, np.int32), np.empty(513, np.int32), np.empty(512, np.int32)
    sizes, ends = np.zeros(512, np.int32), np.zeros(3, np.int32)
    found = group = 0
    for trie in (OTHER, QUOTE_FREE):
        for byte in in_order:
            node, column = tries.roots[trie, byte], machine.class_of_byte[byte]
            if node < 0:
                continue
            if group == ends[trie] or columns[group - 1] != column:
                first[group], columns[group] = found, column
                group += 1
            nodes[found] = node
            found += 1
            sizes[group - 1] += 1 + tries.first_child[node + 1] - tries.first_child[node]
        ends[trie + 1] = group
    first[group] = found
    return RootGroups(nodes, first[: group + 1], columns[:group], sizes[:group], ends)


@njit(cache=True, nogil=True)
def append(tokens, count, more):
    for i in range(len(more)):
        tokens[count + i] = more[i]
    return count + len(more)


@njit(nogil=True, forceinline=True)
def add(found, count, tokens, first, last):
    """Adds `tokens[first:last]`. Most nodes have one token or none, so the first is always written, which is
    faster than a test, and counts only if it exists."""
    found[count] = tokens[first]
    for place in range(first + 1, last):
        found[count + place - first] = tokens[place]
    return count + last - first


@njit(nogil=True, forceinline=True)
def step_of(machine, configurations, here, column):
    """The step from a configuration by a byte class, or `CONFIGURATIONS_FULL`."""
    states = len(machine.transitions)
    if here < states:
        step = machine.transitions[here, column]
        if step < DEAD:
            step = configurations.after_action[-2 - step]
    else:
        step = configurations.rows[here - states, column]
    return follow(machine, configurations, here, column) if step == NOT_COMPUTED else step


@njit(nogil=True, forceinline=True)
def marks_of(context, configuration):
    states = len(context.machine.transitions)
    return context.configurations.parts.rows[configuration - states, 2] if configuration >= states else 0


@njit(nogil=True, forceinline=True)
def sort_tokens(context, counts, node, step):
    """Adds the tokens of a node that a step reached to the buffers; its whole subtree if it is undecided.
    Returns the new counts of the three buffers."""
    tries, found = context.tries, context.buffers
    allowed, undecided, openers = counts
    first = tries.token_starts[node]
    if step == UNDECIDED:
        last = tries.token_starts[tries.ends[node]]
        return allowed, add(found.undecided, undecided, tries.tokens, first, last), openers
    last = tries.token_starts[node + 1]
    marks = marks_of(context, step)
    if marks & ASKED:
        return allowed, add(found.undecided, undecided, tries.tokens, first, last), openers
    if marks & OPENS:
        openers = add(found.openers, openers, tries.tokens, first, last)
    return add(found.allowed, allowed, tries.tokens, first, last), undecided, openers


@njit(nogil=True, forceinline=True)
def walk_in_order(context, counts, node, stop):
    """Walks the nodes from `node` up to `stop` in preorder, from `levels[0, 0]`. Returns the new counts of
    the buffers, and False if the configurations ran out of capacity."""
    tries, machine, places = context.tries, context.machine, context.levels[0]
    while node < stop:
        level = tries.depth[node]
        column = machine.class_of_byte[tries.byte[node]]
        step = step_of(machine, context.configurations, places[level], column)
        if step == CONFIGURATIONS_FULL:
            return counts, False
        if step != DEAD:
            counts = sort_tokens(context, counts, node, step)
        places[level + 1] = step
        node = node + 1 if step >= 0 else tries.ends[node]
    return counts, True


@njit(cache=True, nogil=True)
def walk_quote_free(context, state):
    """Finds the quote-free tokens of one state. Returns the counts of the buffers, and False if the
    configurations ran out of capacity. Visits nodes in preorder, as most of them are allowed."""
    context = unowned(context)
    context.levels[0, 0] = state
    return walk_in_order(context, (0, 0, 0), context.tries.first_quote_free, len(context.tries.ends))
