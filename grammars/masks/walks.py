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

FIRST_ROOM = 1 << 14
_NO_LIMIT = 1 << 30


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


class Walked(NamedTuple):
    """What walks from several states found: three spans of `tokens` for each.

    `ends[i]` are the ends of what is allowed, undecided and openers for state i; each begins where the one
    before ends. `dear[i]`: there was too much among the plain tokens, which are left out.
    """

    tokens: NDArray[np.int32]
    ends: NDArray[np.int32]  # [states, 3]
    dear: NDArray[np.bool_]  # [states]


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
def walk_states(tries, roots, machine, configurations, states, ends_here, is_dear, found, limit, few):  # type: ignore[no-untyped-def]
    """`Walked` of states int32 [n]. A state is dear where its plain tokens take more than `limit` nodes or
    are more than `few`, and where it `is_dear`. Where `ends_here`, ends of sequence are allowed. And whether
    there was room for all configurations, without which the rest is worth nothing."""
    dear = is_dear.copy()
    for i in range(len(states)):
        dear[i] |= _least_looked(roots, machine, configurations, states[i]) > limit
    tokens, ends, had_room = _walk(
        tries, roots, OTHER, machine, configurations, states, ends_here, dear, found, limit, few
    )
    return tokens, ends, dear, had_room


@njit(cache=True, nogil=True)
def walk_plain(tries, roots, machine, configurations, state, found):  # type: ignore[no-untyped-def]
    """How many plain tokens from one state are allowed, undecided, and openers, which are in `found`; and
    whether there was room for all configurations."""
    looked = _least_looked(roots, machine, configurations, state)
    if 4 * looked > 3 * roots.looked[PLAIN].sum():
        return _scan_plain(tries, machine, configurations, state, found)
    states, no = np.array([state], np.int32), np.zeros(1, np.bool_)
    _, ends, had_room = _walk(
        tries, roots, PLAIN, machine, configurations, states, no, no, found, _NO_LIMIT, _NO_LIMIT
    )
    return (ends[0, 0], ends[0, 1] - ends[0, 0], ends[0, 2] - ends[0, 1]), had_room


@njit(cache=True, nogil=True)
def append(tokens, count, more):  # type: ignore[no-untyped-def]
    for i in range(len(more)):
        tokens[count + i] = more[i]
    return count + len(more)


@njit(cache=True, nogil=True)
def keep(tokens, used, found, counts, ends):  # type: ignore[no-untyped-def]
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


@njit(nogil=True, forceinline=True)
def add(found, count, tokens, first, last):  # type: ignore[no-untyped-def]
    """Adds the tokens from `first` on that come before `last`. A node has one or none as a rule: so the first
    is written in any case, which is sooner done than asked, and counts only if it is there."""
    found[count] = tokens[first]
    for place in range(first + 1, last):
        found[count + place - first] = tokens[place]
    return count + last - first


@njit(cache=True, nogil=True)
def _least_looked(roots, machine, configurations, state):  # type: ignore[no-untyped-def]
    """How many nodes of the plain trie a walk looks at, or fewer."""
    transitions, after_action, below = machine.transitions, configurations.after_action, roots.looked
    looked = 0
    for column in range(transitions.shape[1]):
        step = transitions[state, column]
        if step < DEAD:
            step = after_action[-2 - step]
        if step >= 0:
            looked += below[PLAIN, column]
    return looked


@njit(cache=True, nogil=True)
def _scan_plain(tries, machine, configurations, state, found):  # type: ignore[no-untyped-def]
    """As `walk_plain`. Takes nodes in their order, which is best where most of them lead somewhere."""
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


@njit(cache=True, nogil=True)
def _walk(tries, roots, first_trie, machine, configurations, chosen, ends_here, dear, found, limit, few):  # type: ignore[no-untyped-def]
    """Tokens and the ends of what is allowed, undecided and openers of each state chosen, int32 [n, 3]; of
    dear ones nothing from the plain trie. It becomes dear where that takes more than `limit` nodes or `few`
    tokens. Of the children of each node it looks for those that lead somewhere, as most of them don't."""
    child_ends, token_starts, tokens, eos = tries.ends, tries.token_starts, tries.tokens, tries.eos
    first_child, child, child_byte = tries.first_child, tries.child, tries.child_byte
    transitions, class_of_byte = machine.transitions, machine.class_of_byte
    after_action, rows, parts = configurations.after_action, configurations.rows, configurations.parts
    allowed, undecided, openers = found
    root_nodes, first_root = roots.nodes, roots.first
    places = np.empty(tries.max_bytes + 1, np.int32)
    at, until = np.empty(len(places), np.int32), np.empty(len(places), np.int32)
    kept, kept_ends, used = np.empty(FIRST_ROOM, np.int32), np.empty((len(chosen), 3), np.int32), 0
    states, classes = transitions.shape
    for i in range(len(chosen)):
        state = chosen[i]
        alive = open_questions = opening = 0
        counts = (0, 0, 0)
        for trie in range(first_trie, PLAIN + 1):
            if trie == PLAIN:
                alive = append(allowed, alive, eos) if ends_here[i] else alive
                counts = (alive, open_questions, opening)
                if dear[i]:
                    continue
            looked, most = 0, limit if trie == PLAIN else _NO_LIMIT
            for root_column in range(classes):
                if transitions[state, root_column] == DEAD:
                    continue
                for root in range(first_root[trie, root_column], first_root[trie, root_column + 1]):
                    node, column, here, level = root_nodes[root], root_column, state, 0
                    looked += 1
                    while looked <= most:
                        if here < states:
                            step = transitions[here, column]
                            if step < DEAD:
                                step = after_action[-2 - step]
                        else:
                            step = rows[here - states, column]
                        if step == NOT_YET:
                            step = follow(machine, configurations, here, column)
                            if step == FULL:
                                return kept, kept_ends, False
                        if step == UNDECIDED:
                            first, last = token_starts[node], token_starts[child_ends[node]]
                            open_questions = add(undecided, open_questions, tokens, first, last)
                        elif step >= 0:
                            first, last = token_starts[node], token_starts[node + 1]
                            marks = parts[step - states, 2] if step >= states else 0
                            if marks & ASKED:
                                open_questions = add(undecided, open_questions, tokens, first, last)
                            else:
                                alive = add(allowed, alive, tokens, first, last)
                                if marks & OPENS:
                                    opening = add(openers, opening, tokens, first, last)
                            level += 1
                            places[level], at[level], until[level] = (
                                step,
                                first_child[node],
                                first_child[node + 1],
                            )
                            looked += until[level] - at[level]
                        while level > 0:
                            here, place, last_child = places[level], at[level], until[level]
                            if here < states:
                                while (
                                    place < last_child
                                    and transitions[here, class_of_byte[child_byte[place]]] == DEAD
                                ):
                                    place += 1
                            else:
                                while (
                                    place < last_child
                                    and rows[here - states, class_of_byte[child_byte[place]]] == DEAD
                                ):
                                    place += 1
                            at[level] = place + 1
                            if place < last_child:
                                node, column = child[place], class_of_byte[child_byte[place]]
                                break
                            level -= 1
                        if level == 0:
                            break
            if trie == PLAIN and (looked > limit or alive - counts[0] > few):
                dear[i] = True
                alive, open_questions, opening = counts
        kept, used = keep(kept, used, found, (alive, open_questions, opening), kept_ends[i])
    return kept[:used], kept_ends, True
