"""Where walks from the states of an automaton may be: at a state, with what the walk has pushed.

A configuration stands for all ways there, so that each step from it is worked out once. States with nothing
beside them are their own configurations; others have numbers from the number of states on.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from ..machine.stack_automaton import (
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

UNDECIDED, NOT_YET, FULL = -2, -3, -4
ASKED, OPENS = 1, 2  # marks: whether a set that is not known was asked, and whether room was taken
_UNIT = 4  # of a count below the level at which the walk began, in the marks
_IS_FRAME = -1
_UNKNOWN = -1  # a set of several words, whose names are left to the stack
_FIRST_ROOM = 1024


class Configurations(NamedTuple):
    """Part i is (state, top frame or -1, marks) of configuration i + states, or (value, frame below or -1,
    `_IS_FRAME`). A step is a configuration, `DEAD`, `UNDECIDED`, or `NOT_YET` known."""

    after_action: NDArray[np.int32]  # [actions], steps from states with nothing beside them
    rows: NDArray[np.int32]  # [room, classes], steps from configurations
    parts: NDArray[np.int32]  # [room, 3]
    slots: NDArray[np.int32]  # parts by their hash, -1 for none
    used: NDArray[np.int64]  # [1], how many parts there are


@njit(cache=True, nogil=True)
def no_configurations(machine):  # type: ignore[no-untyped-def]
    states, classes = machine.transitions.shape
    after_action = np.full(len(machine.actions), NOT_YET, np.int32)
    return _with_room(after_action, _FIRST_ROOM + 4 * states, classes)


@njit(cache=True, nogil=True)
def grown(configurations):  # type: ignore[no-untyped-def]
    """The same, which leaves the old ones as they are."""
    rows, parts = configurations.rows, configurations.parts
    larger = _with_room(configurations.after_action.copy(), 2 * len(rows), rows.shape[1])
    used = configurations.used[0]
    larger.rows[:used] = rows[:used]
    larger.parts[:used] = parts[:used]
    larger.used[0] = used
    for part in range(used):
        larger.slots[_slot(larger, parts[part, 0], parts[part, 1], parts[part, 2])] = part
    return larger


@njit(cache=True, nogil=True)
def _with_room(after_action, room, classes):  # type: ignore[no-untyped-def]
    slots = 1
    while slots < 2 * room:
        slots *= 2
    return Configurations(
        after_action,
        np.empty((room, classes), np.int32),
        np.empty((room, 3), np.int32),
        np.full(slots, -1, np.int32),
        np.zeros(1, np.int64),
    )


@njit(cache=True, nogil=True)
def follow(machine, configurations, here, column):  # type: ignore[no-untyped-def]
    """Where a class of bytes leads from a configuration, from now on known; `FULL` if there is no room."""
    if configurations.used[0] + 3 > len(configurations.parts):
        return np.int32(FULL)
    states = len(machine.transitions)
    state, frame, marks = np.int64(here), np.int64(-1), np.int64(0)
    if here >= states:
        state, frame, marks = configurations.parts[here - states]
    entry = np.int64(machine.transitions[state, column])
    if entry < DEAD:
        step = _acted(machine, configurations, -2 - entry, frame, marks)
    else:
        step = _configuration(machine, configurations, entry, frame, marks)
    if here >= states:
        configurations.rows[here - states, column] = step
    else:
        configurations.after_action[-2 - entry] = step
    return step


@njit(cache=True, nogil=True)
def _configuration(machine, configurations, state, frame, marks):  # type: ignore[no-untyped-def]
    if state < 0 or (frame < 0 and marks == 0):
        return np.int32(state)
    known = configurations.used[0]
    part = _part(configurations, state, frame, marks)
    if part == known:
        for column in range(machine.transitions.shape[1]):
            is_dead = machine.transitions[state, column] == DEAD
            configurations.rows[part, column] = DEAD if is_dead else NOT_YET
    return np.int32(len(machine.transitions) + part)


@njit(cache=True, nogil=True)
def _acted(machine, configurations, action, frame, marks):  # type: ignore[no-untyped-def]
    """The step of an action."""
    parts = configurations.parts
    kind, target, operand, room, words = machine.actions[action, :5].astype(np.int64)
    is_count = kind in (COUNT, COUNT_CALL)
    value = np.int64(parts[frame, 0]) if frame >= 0 else np.int64(_UNKNOWN)
    is_unknown = frame < 0 or (kind != POP and value == _UNKNOWN)
    if is_unknown and kind in (POP, CLOSE):
        return np.int32(UNDECIDED)
    if frame < 0 and is_count and marks // _UNIT == TAIL:
        return np.int32(UNDECIDED)
    if is_unknown and kind in (SEE, NEED):
        return _configuration(machine, configurations, target, frame, marks | ASKED)
    below = np.int64(parts[frame, 1]) if frame >= 0 else np.int64(-1)
    if kind in (CLOSE, NEED) and (value & words == words) == (kind == NEED):
        return np.int32(DEAD)
    if kind in (POP, CLOSE):
        if kind == CLOSE:
            value, below = np.int64(parts[below, 0]), np.int64(parts[below, 1])
        target, frame = np.int64(machine.returns[value + operand]), below
    elif kind == SEE:
        if value >> operand & 1:
            return np.int32(DEAD)
        frame = _part(configurations, value | (1 << operand), below, _IS_FRAME)
    elif kind == DROP:
        frame, marks = below, marks % _UNIT
    elif is_count and frame < 0:
        marks += _UNIT
    elif is_count:
        frame = _part(configurations, value - 1, below, _IS_FRAME)
        if value == 1:
            target = operand if kind == COUNT else target
            operand += 1
    elif kind == OPEN:
        frame = _part(configurations, operand, frame, _IS_FRAME)
        operand = 0 if words == 1 else _UNKNOWN
    if kind in (PUSH, CALL, COUNT_CALL, OPEN):
        frame = _part(configurations, operand, frame, _IS_FRAME)
    return _configuration(machine, configurations, target, frame, marks | OPENS if room >= 0 else marks)


@njit(cache=True, nogil=True)
def _part(configurations, first, second, third):  # type: ignore[no-untyped-def]
    """The number of this part, for which there must be room."""
    slot = _slot(configurations, first, second, third)
    part = np.int64(configurations.slots[slot])
    if part < 0:
        part = configurations.used[0]
        configurations.used[0] += 1
        configurations.slots[slot] = part
        configurations.parts[part, 0] = first
        configurations.parts[part, 1] = second
        configurations.parts[part, 2] = third
    return part


@njit(cache=True, nogil=True)
def _slot(configurations, first, second, third):  # type: ignore[no-untyped-def]
    """Where the part is among those by hash, or would be."""
    slots, parts = configurations.slots, configurations.parts
    code = np.uint64(0)
    for number in (first, second, third):
        code = (code ^ np.uint64(np.uint32(number))) * np.uint64(0x9E3779B97F4A7C15)
        code ^= code >> np.uint64(29)
    slot = np.int64(code & np.uint64(len(slots) - 1))
    while slots[slot] >= 0:
        part = slots[slot]
        if parts[part, 0] == first and parts[part, 1] == second and parts[part, 2] == third:
            break
        slot = (slot + 1) & (len(slots) - 1)
    return slot
