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

from ..stack_automaton import (
    CALL,
    CLOSE,
    COUNT,
    COUNT_CALL,
    DEAD,
    DROP,
    NEED,
    OPEN,
    POP,
    PUSH,
    SEE,
    TAIL,
)
from .token_trie import OTHER, PLAIN

NO_LIMIT = 1 << 30
UNDECIDED = -2
UNKNOWN = -1  # a set of several words, whose names are left to the stack
FIRST_ROOM = 1 << 14


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


class Levels(NamedTuple):
    """Where a walk is after the bytes before each level, and the frames that it pushed at level i, 2 i and
    2 i + 1: each has a value and the frame below it."""

    states: NDArray[np.int32]
    top: NDArray[np.int32]  # the top frame, -1 for none
    asked: NDArray[np.bool_]  # whether a set was that is not known
    pushed: NDArray[np.bool_]
    units: NDArray[np.int32]
    value: NDArray[np.int32]
    below: NDArray[np.int32]


@njit(cache=True, nogil=True)
def walk_states(tries, machine, states, ends_here, is_dear, found, limit, few):  # type: ignore[no-untyped-def]
    """`Walked` of states int32 [n]. A state is dear where its plain tokens take more than `limit` nodes or
    are more than `few`, and where it `is_dear`. Where `ends_here`, ends of sequence are allowed."""
    dear = is_dear.copy()
    tokens, ends = _walk(tries, OTHER, machine, states, ends_here, dear, found, limit, few)
    return tokens, ends, dear


@njit(cache=True, nogil=True)
def walk_plain(tries, machine, state, found):  # type: ignore[no-untyped-def]
    """`Walked` of plain tokens from one state."""
    states, no = np.array([state], np.int32), np.zeros(1, np.bool_)
    tokens, ends = _walk(tries, PLAIN, machine, states, no, no, found, NO_LIMIT, NO_LIMIT)
    return tokens, ends, no


@njit(cache=True, nogil=True)
def new_levels(count):  # type: ignore[no-untyped-def]
    return Levels(
        np.empty(count + 1, np.int32),
        np.empty(count + 1, np.int32),
        np.empty(count + 1, np.bool_),
        np.empty(count + 1, np.bool_),
        np.empty(count + 1, np.int32),
        np.empty(2 * count + 2, np.int32),
        np.empty(2 * count + 2, np.int32),
    )


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
        grown = np.empty(2 * total, np.int32)
        grown[:used] = tokens[:used]
        tokens = grown
    used = append(tokens, used, found.allowed[: counts[0]])
    ends[0] = used
    used = append(tokens, used, found.undecided[: counts[1]])
    ends[1] = used
    used = append(tokens, used, found.openers[: counts[2]])
    ends[2] = used
    return tokens, used


@njit(nogil=True, forceinline=True)
def acted(actions, returns, action, level, frame, asked, pushed, units, value, below):  # type: ignore[no-untyped-def]
    """What an action at a level leads to: state, `DEAD` or `UNDECIDED`; top frame, asked, pushed, units.

    It has scalars for what changes, which the compiler keeps in registers: the walk is twice as fast.
    """
    kind = actions[action, 0]
    target = actions[action, 1]
    operand = actions[action, 2]
    is_count = kind in (COUNT, COUNT_CALL)
    is_unknown = frame < 0 or (kind != POP and value[frame] == UNKNOWN)
    if (is_unknown and kind in (POP, CLOSE)) or (frame < 0 and is_count and units == TAIL):
        return UNDECIDED, frame, asked, pushed, units
    if is_unknown and kind in (SEE, NEED):
        return target, frame, True, pushed, units
    entry = target
    if kind == POP:
        entry = returns[value[frame] + operand]
        frame = below[frame]
    elif kind == CLOSE:
        entry = DEAD
        if value[frame] & actions[action, 4] == actions[action, 4]:
            frame = below[frame]
            entry = returns[value[frame] + operand]
            frame = below[frame]
    elif kind == NEED:
        if value[frame] & actions[action, 4] == actions[action, 4]:
            entry = DEAD
    elif kind == SEE:
        if value[frame] >> operand & 1:
            entry = DEAD
        value[2 * level] = value[frame] | (1 << operand)
        below[2 * level] = below[frame]
        frame = 2 * level
    elif kind == DROP:
        frame = below[frame] if frame >= 0 else -1
        units = 0
    elif is_count and frame < 0:
        units += 1
    elif is_count or kind == OPEN:
        left = value[frame] - 1 if is_count else operand
        value[2 * level] = left
        below[2 * level] = below[frame] if is_count else frame
        frame = 2 * level
        if kind == OPEN:
            operand = 0 if actions[action, 4] == 1 else UNKNOWN
        elif left == 0:
            operand += 1
            if kind == COUNT:
                entry = operand - 1
    pushed = pushed or actions[action, 3] >= 0
    if kind in (PUSH, CALL, COUNT_CALL, OPEN):
        value[2 * level + 1] = operand
        below[2 * level + 1] = frame
        frame = 2 * level + 1
    return entry, frame, asked, pushed, units


@njit(nogil=True, forceinline=True)
def begin(state, states, top, asked, pushed, units):  # type: ignore[no-untyped-def]
    states[0] = state
    top[0] = -1
    asked[0] = False
    pushed[0] = False
    units[0] = 0


@njit(nogil=True, forceinline=True)
def add_subtree(found, count, ends, token_starts, tokens, node):  # type: ignore[no-untyped-def]
    """Adds the tokens that begin with the path to a node."""
    for position in range(token_starts[node], token_starts[ends[node]]):
        found[count] = tokens[position]
        count += 1
    return count


@njit(cache=True, nogil=True)
def _roots_by_class(tries, machine):  # type: ignore[no-untyped-def]
    """The nodes for first bytes, and where those of each trie and class begin: [2, classes + 1]."""
    in_order = np.argsort(machine.class_of_byte, kind="mergesort")
    roots, first = np.empty(512, np.int32), np.empty((2, machine.transitions.shape[1] + 1), np.int32)
    found = 0
    for trie in (OTHER, PLAIN):
        column = 0
        for byte in in_order:
            while column <= machine.class_of_byte[byte]:
                first[trie, column] = found
                column += 1
            if tries.roots[trie, byte] >= 0:
                roots[found] = tries.roots[trie, byte]
                found += 1
        first[trie, column:] = found
    return roots, first


@njit(cache=True, nogil=True)
def _walk(tries, first_trie, machine, chosen, ends_here, dear, found, limit, few):  # type: ignore[no-untyped-def]
    """Tokens and the ends of what is allowed, undecided and openers of each state chosen, int32 [n, 3]; of
    dear ones nothing from the plain trie. It becomes dear where that takes more than `limit` nodes or `few`
    tokens."""
    child_ends, token_starts, tokens = tries.ends, tries.token_starts, tries.tokens
    first_child, child, child_byte = tries.first_child, tries.child, tries.child_byte
    transitions, class_of_byte, actions, returns = machine
    states, top, asked, pushed, units, value, below = new_levels(tries.max_bytes)
    at, until = np.empty(len(states), np.int32), np.empty(len(states), np.int32)
    allowed, undecided, openers = found
    roots, first_root = _roots_by_class(tries, machine)
    kept, kept_ends, used = np.empty(FIRST_ROOM, np.int32), np.empty((len(chosen), 3), np.int32), 0
    for i in range(len(chosen)):
        state = chosen[i]
        begin(state, states, top, asked, pushed, units)
        alive = open_questions = opening = 0
        counts = (0, 0, 0)
        for trie in range(first_trie, PLAIN + 1):
            if trie == PLAIN:
                alive = append(allowed, alive, tries.eos) if ends_here[i] else alive
                counts = (alive, open_questions, opening)
            visited, most = 0, limit if trie == PLAIN else NO_LIMIT
            for column in range(transitions.shape[1]):
                if transitions[state, column] == DEAD or (trie == PLAIN and dear[i]):
                    continue
                for place in range(first_root[trie, column], first_root[trie, column + 1]):
                    node, entry, level = roots[place], transitions[state, column], 0
                    visited += 1
                    while visited <= most:
                        frame, asks, opens, counted = top[level], asked[level], pushed[level], units[level]
                        if entry < DEAD:
                            entry, frame, asks, opens, counted = acted(
                                actions, returns, -2 - entry, level, frame, asks, opens, counted, value, below
                            )
                        if entry == UNDECIDED:
                            open_questions = add_subtree(
                                undecided, open_questions, child_ends, token_starts, tokens, node
                            )
                        elif entry >= 0:
                            level += 1
                            states[level] = entry
                            top[level], asked[level], pushed[level], units[level] = (
                                frame,
                                asks,
                                opens,
                                counted,
                            )
                            at[level], until[level] = first_child[node], first_child[node + 1]
                            for position in range(token_starts[node], token_starts[node + 1]):
                                if asks:
                                    undecided[open_questions] = tokens[position]
                                    open_questions += 1
                                    continue
                                allowed[alive] = tokens[position]
                                alive += 1
                                if opens:
                                    openers[opening] = tokens[position]
                                    opening += 1
                        entry = DEAD
                        while level > 0:
                            next_child, last, here = at[level], until[level], states[level]
                            visited -= next_child
                            while next_child < last and entry == DEAD:
                                entry = transitions[here, class_of_byte[child_byte[next_child]]]
                                next_child += 1
                            visited += next_child
                            if entry != DEAD:
                                at[level] = next_child
                                node = child[next_child - 1]
                                break
                            level -= 1
                        if level == 0:
                            break
            if trie == PLAIN and (dear[i] or visited > limit or alive - counts[0] > few):
                dear[i] = True
                alive, open_questions, opening = counts
        kept, used = keep(kept, used, found, (alive, open_questions, opening), kept_ends[i])
    return kept[:used], kept_ends
