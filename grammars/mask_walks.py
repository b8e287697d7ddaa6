"""Walks of the vocabulary's tries from the states of an automaton.

A walk sorts tokens into those that lead somewhere (*allowed*), those whose bytes look below the level of
the stack at which they begin (*undecided*), and among the allowed those that need room on it (*openers*).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .stack_automaton import (
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

NO_LIMIT = 1 << 30
_UNDECIDED = -2
_FIRST_ROOM = 1 << 14


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


class _Levels(NamedTuple):
    """Where a walk is after the bytes before each level, and the frames that it pushed at level i, 2 i and
    2 i + 1: each has a value and the frame below it."""

    states: NDArray[np.int32]
    top: NDArray[np.int32]  # the top frame, -1 for none
    pushed: NDArray[np.bool_]
    units: NDArray[np.int32]
    value: NDArray[np.int32]
    below: NDArray[np.int32]


@njit(cache=True, nogil=True)
def walk_states(tries, machine, states, ends_here, found, limit, few):  # type: ignore[no-untyped-def]
    """`Walked` of states int32 [n]. A state is dear where its plain tokens take more than `limit` nodes
    or are more than `few`. Where `ends_here`, ends of sequence are allowed."""
    tokens = np.empty(_FIRST_ROOM, np.int32)
    ends = np.empty((len(states), 3), np.int32)
    dear = np.zeros(len(states), np.bool_)
    levels = _levels(tries.max_bytes)
    used = 0
    for i in range(len(states)):
        none = (0, 0, 0)
        counts = _walk(tries.other, machine, states[i], levels, found, none, NO_LIMIT)
        if ends_here[i]:
            counts = (_added(found.allowed, counts[0], tries.eos), counts[1], counts[2])
        more = _walk(tries.plain, machine, states[i], levels, found, counts, limit)
        dear[i] = more[0] < 0 or more[0] - counts[0] > few
        tokens, used = _kept(tokens, used, found, counts if dear[i] else more, ends[i])
    return tokens[:used], ends, dear


@njit(cache=True, nogil=True)
def walk_plain(tries, machine, state, found):  # type: ignore[no-untyped-def]
    """Counts of the plain tokens that are allowed, undecided and openers, which are in `found`."""
    return _walk(tries.plain, machine, state, _levels(tries.max_bytes), found, (0, 0, 0), NO_LIMIT)


@njit(cache=True, nogil=True)
def walk_differences(tries, machine, states, likes, ends_apart, found):  # type: ignore[no-untyped-def]
    """`Walked` of each state beside one that is like it: tokens that only one of the two allows, those
    undecided only from the state, and openers only from it. What is undecided from the other may be
    decided from the state; it is left out. Where `ends_apart`, one of the two allows the ends of sequence."""
    tokens = np.empty(_FIRST_ROOM, np.int32)
    ends = np.empty((len(states), 3), np.int32)
    levels, others = _levels(tries.max_bytes), _levels(tries.max_bytes)
    used = 0
    for i in range(len(states)):
        counts = (0, 0, 0)
        for trie in (tries.other, tries.plain):
            counts = _walk_both(trie, machine, states[i], likes[i], levels, others, found, counts)
        if ends_apart[i]:
            counts = (_added(found.allowed, counts[0], tries.eos), counts[1], counts[2])
        tokens, used = _kept(tokens, used, found, counts, ends[i])
    return tokens[:used], ends, np.zeros(len(states), np.bool_)


@njit(cache=True, nogil=True)
def _levels(count):  # type: ignore[no-untyped-def]
    return _Levels(
        np.empty(count + 1, np.int32),
        np.empty(count + 1, np.int32),
        np.empty(count + 1, np.bool_),
        np.empty(count + 1, np.int32),
        np.empty(2 * count + 2, np.int32),
        np.empty(2 * count + 2, np.int32),
    )


@njit(cache=True, nogil=True)
def _added(tokens, count, more):  # type: ignore[no-untyped-def]
    for i in range(len(more)):
        tokens[count + i] = more[i]
    return count + len(more)


@njit(cache=True, nogil=True)
def _kept(tokens, used, found, counts, ends):  # type: ignore[no-untyped-def]
    """The tokens with what was found behind them, and how many they are now; notes where each part ends."""
    total = used + counts[0] + counts[1] + counts[2]
    if total > len(tokens):
        grown = np.empty(2 * total, np.int32)
        grown[:used] = tokens[:used]
        tokens = grown
    used = _added(tokens, used, found.allowed[: counts[0]])
    ends[0] = used
    used = _added(tokens, used, found.undecided[: counts[1]])
    ends[1] = used
    used = _added(tokens, used, found.openers[: counts[2]])
    ends[2] = used
    return tokens, used


@njit(nogil=True, forceinline=True)
def _acted(actions, returns, action, level, frame, pushed, units, value, below):  # type: ignore[no-untyped-def]
    """What an action at a level leads to: state, `DEAD` or `_UNDECIDED`; top frame, pushed, units.

    It has scalars for what changes, which the compiler keeps in registers: the walk is twice as fast.
    """
    kind = actions[action, 0]
    target = actions[action, 1]
    operand = actions[action, 2]
    is_count = kind in (COUNT, COUNT_CALL)
    is_set = kind in (CLOSE, SEE, NEED)
    if frame < 0 and (kind == POP or is_set or (is_count and units == TAIL)):
        return _UNDECIDED, frame, pushed, units
    entry = target
    if kind == POP:
        entry = returns[value[frame] + operand]
        frame = below[frame]
    elif kind == CLOSE:
        entry = DEAD
        if value[frame] & target == target:
            frame = below[frame]
            entry = returns[value[frame] + operand]
            frame = below[frame]
    elif kind == NEED:
        if value[frame] & operand == operand:
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
            operand = 0
        elif left == 0:
            operand += 1
            if kind == COUNT:
                entry = operand - 1
    pushed = pushed or actions[action, 3] >= 0
    if kind in (PUSH, CALL, COUNT_CALL, OPEN):
        value[2 * level + 1] = operand
        below[2 * level + 1] = frame
        frame = 2 * level + 1
    return entry, frame, pushed, units


@njit(nogil=True, forceinline=True)
def _entered(  # type: ignore[no-untyped-def]
    transitions, actions, returns, column, level, states, top, pushed, units, value, below
):
    """Goes to the next level; a walk that is over stays so."""
    entry = states[level]
    if entry >= 0:
        entry = transitions[entry, column]
        frame, opens, counted = top[level], pushed[level], units[level]
        if entry < DEAD:
            entry, frame, opens, counted = _acted(
                actions, returns, -2 - entry, level, frame, opens, counted, value, below
            )
        top[level + 1] = frame
        pushed[level + 1] = opens
        units[level + 1] = counted
    states[level + 1] = entry
    return entry


@njit(nogil=True, forceinline=True)
def _start(state, states, top, pushed, units):  # type: ignore[no-untyped-def]
    states[0] = state
    top[0] = -1
    pushed[0] = False
    units[0] = 0


@njit(nogil=True, forceinline=True)
def _add_subtree(found, count, ends, token_starts, tokens, node):  # type: ignore[no-untyped-def]
    """Adds the tokens that begin with the path to a node."""
    for position in range(token_starts[node], token_starts[ends[node]]):
        found[count] = tokens[position]
        count += 1
    return count


@njit(cache=True, nogil=True)
def _walk(trie, machine, state, levels, found, counts, limit):  # type: ignore[no-untyped-def]
    """Counts with what this trie adds; less than 0 where it takes more than `limit` nodes."""
    byte, depth, ends, token_starts, tokens, roots = trie
    transitions, class_of_byte, actions, returns = machine
    states, top, pushed, units, value, below = levels
    allowed, undecided, openers = found
    alive, open_questions, opening = counts
    _start(state, states, top, pushed, units)
    visited = 0
    for first in range(256):
        node = roots[first]
        if node < 0 or transitions[state, class_of_byte[first]] == DEAD:
            continue
        last = ends[node]
        while node < last:
            visited += 1
            if visited > limit:
                return -1, open_questions, opening
            level = depth[node]
            entry = transitions[states[level], class_of_byte[byte[node]]]
            frame, opens, counted = top[level], pushed[level], units[level]
            if entry < DEAD:
                entry, frame, opens, counted = _acted(
                    actions, returns, -2 - entry, level, frame, opens, counted, value, below
                )
            if entry < 0:
                if entry == _UNDECIDED:
                    open_questions = _add_subtree(undecided, open_questions, ends, token_starts, tokens, node)
                node = ends[node]
                continue
            states[level + 1] = entry
            top[level + 1] = frame
            pushed[level + 1] = opens
            units[level + 1] = counted
            for position in range(token_starts[node], token_starts[node + 1]):
                allowed[alive] = tokens[position]
                alive += 1
                if opens:
                    openers[opening] = tokens[position]
                    opening += 1
            node += 1
    return alive, open_questions, opening


@njit(cache=True, nogil=True)
def _walk_both(trie, machine, state, like, levels, others, found, counts):  # type: ignore[no-untyped-def]
    """Two walks at once, which end where both would go on from the same place.

    A walk that has come to its end stays `DEAD` or `_UNDECIDED` for all that follows below.
    """
    byte, depth, ends, token_starts, tokens, roots = trie
    transitions, class_of_byte, actions, returns = machine
    states, top, pushed, units, value, below = levels
    its_states, its_top, its_pushed, its_units, its_value, its_below = others
    differing, undecided, openers = found
    apart, open_questions, opening = counts
    _start(state, states, top, pushed, units)
    _start(like, its_states, its_top, its_pushed, its_units)
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
            if (
                here >= 0
                and there >= 0
                and transitions[here, column] == transitions[there, column]
                and top[level] < 0
                and its_top[level] < 0
                and units[level] == its_units[level]
                and pushed[level] == its_pushed[level]
            ):
                node = ends[node]
                continue
            here = _entered(
                transitions, actions, returns, column, level, states, top, pushed, units, value, below
            )
            there = _entered(
                transitions, actions, returns, column, level,
                its_states, its_top, its_pushed, its_units, its_value, its_below,
            )  # fmt: skip
            if here < 0 and there < 0:
                if here == _UNDECIDED and there == DEAD:
                    open_questions = _add_subtree(undecided, open_questions, ends, token_starts, tokens, node)
                node = ends[node]
                continue
            opens = here >= 0 and pushed[level + 1] and not (there >= 0 and its_pushed[level + 1])
            for position in range(token_starts[node], token_starts[node + 1]):
                if there == _UNDECIDED:
                    continue
                if here == _UNDECIDED:
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
