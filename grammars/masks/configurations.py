"""Configurations: a state of the automaton with what a walk has pushed, numbered, and the steps between them.

The step from each configuration by each byte class is computed once. A state on which nothing was pushed is
its own configuration; the others have numbers from the number of states on.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...runtime.automaton_format import (
    CALL,
    CLOSE,
    COUNT,
    COUNT_CALL,
    DEAD,
    DROP,
    HAVE,
    NEED,
    OPEN,
    POP,
    PUSH,
    SEE,
    WORDS,
)
from ...runtime.json_gaps import WIDEST_WAY
from ..jit import njit
from ..machine.stack_automaton import TAIL

UNDECIDED, NOT_COMPUTED, CONFIGURATIONS_FULL = -2, -3, -4
ASKED, OPENS = 1, 2
"""marks: the walk asked the stack below its start (a set, or the white space before); the walk needs free
places on the stack"""
_UNIT = 4  # in the marks: 1 taken from a count below the walk's start
_IS_FRAME = -1
_UNKNOWN = -1  # the value of a set of several words, whose names only the stack knows
_FIRST_CAPACITY = 1024


class Configurations(NamedTuple):
    """Part i is configuration i + states as (state, top frame or -1, marks), or a frame of the stack as
    (value, frame below or -1, `_IS_FRAME`). A step is a configuration, `DEAD`, `UNDECIDED` or
    `NOT_COMPUTED`."""

    after_action: NDArray[np.int32]  # [actions], steps from states on which nothing was pushed
    rows: NDArray[np.int32]  # [capacity, classes], steps from configurations
    parts: NDArray[np.int32]  # [capacity, 3]
    slots: NDArray[np.int32]  # hash table of parts, -1 where empty
    used: NDArray[np.int64]  # [1], number of parts


@njit(cache=True, nogil=True)
def no_configurations(machine):
    states, classes = machine.transitions.shape
    after_action = np.full(len(machine.actions), NOT_COMPUTED, np.int32)
    return _with_capacity(after_action, _FIRST_CAPACITY + 4 * states, classes)


@njit(cache=True, nogil=True)
def grow(configurations):
    """A copy with twice the capacity."""
    rows, parts = configurations.rows, configurations.parts
    larger = _with_capacity(configurations.after_action.copy(), 2 * len(rows), rows.shape[1])
    used = configurations.used[0]
    larger.rows[:used] = rows[:used]
    larger.parts[:used] = parts[:used]
    larger.used[0] = used
    for part in range(used):
        larger.slots[_slot(larger, parts[part, 0], parts[part, 1], parts[part, 2])] = part
    return larger


@njit(cache=True, nogil=True)
def _with_capacity(after_action, capacity, classes):
    slots = 1
    while slots < 2 * capacity:
        slots *= 2
    return Configurations(
        after_action,
        np.empty((capacity, classes), np.int32),
        np.empty((capacity, 3), np.int32),
        np.full(slots, -1, np.int32),
        np.zeros(1, np.int64),
    )


@njit(cache=True, nogil=True)
def follow(machine, configurations, here, column):
    """Computes and stores the step from a configuration by a byte class; may be `CONFIGURATIONS_FULL`."""
    if configurations.used[0] + 3 > len(configurations.parts):
        return np.int32(CONFIGURATIONS_FULL)
    states = len(machine.transitions)
    state, frame, marks = np.int64(here), np.int64(-1), np.int64(0)
    if here >= states:
        state, frame, marks = configurations.parts[here - states]
    entry = np.int64(machine.transitions[state, column])
    if entry < DEAD:
        step = _act(machine, configurations, -2 - entry, frame, marks)
    else:
        step = _configuration(machine, configurations, entry, frame, marks)
    if here >= states:
        configurations.rows[here - states, column] = step
    else:
        configurations.after_action[-2 - entry] = step
    return step


@njit(cache=True, nogil=True)
def _configuration(machine, configurations, state, frame, marks):
    if state < 0 or (frame < 0 and marks == 0):
        return np.int32(state)
    known = configurations.used[0]
    part = _part(configurations, state, frame, marks)
    if part == known:
        for column in range(machine.transitions.shape[1]):
            is_dead = machine.transitions[state, column] == DEAD
            configurations.rows[part, column] = DEAD if is_dead else NOT_COMPUTED
    return np.int32(len(machine.transitions) + part)


@njit(cache=True, nogil=True)
def _act(machine, configurations, action, frame, marks):
    """The step of an action."""
    parts = configurations.parts
    kind, target, operand, reserve, gap, words = machine.actions[action, : WORDS + 1].astype(np.int64)
    is_count = kind in (COUNT, COUNT_CALL)
    value = np.int64(parts[frame, 0]) if frame >= 0 else np.int64(_UNKNOWN)
    is_unknown = frame < 0 or (kind != POP and value == _UNKNOWN)
    if is_unknown and kind in (POP, CLOSE):
        return np.int32(UNDECIDED)
    if frame < 0 and is_count and marks // _UNIT == TAIL:
        return np.int32(UNDECIDED)
    if gap:  # the walk goes on as if the reply had chosen the widest way
        marks |= ASKED
        if kind not in (POP, CLOSE):
            target += WIDEST_WAY[gap]
    if is_unknown and kind in (SEE, NEED, HAVE):
        return _configuration(machine, configurations, target, frame, marks | ASKED)
    below = np.int64(parts[frame, 1]) if frame >= 0 else np.int64(-1)
    if kind in (CLOSE, NEED, HAVE) and (value & words == words) == (kind == NEED):
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
    return _configuration(machine, configurations, target, frame, marks | OPENS if reserve >= 0 else marks)


@njit(cache=True, nogil=True)
def _part(configurations, first, second, third):
    """The number of this part, which is added if it is new. The caller ensures the capacity."""
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
def _slot(configurations, first, second, third):
    """The hash table's slot of this part, or the empty slot for it."""
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
