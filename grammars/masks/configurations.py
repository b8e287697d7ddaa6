"""Configurations: a state of the automaton with what a walk has pushed, numbered, and the steps between them.

The step from each configuration by each byte class is computed once. A state on which nothing was pushed is
its own configuration; other configurations are numbered after the states.
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
from ..jit.arrays import DistinctRows, grow_rows, longer, no_rows, number_next
from ..machine.stack_automaton import TAIL

UNDECIDED, NOT_COMPUTED, CONFIGURATIONS_FULL = -2, -3, -4
ASKED, OPENS = 1, 2
"""marks: the walk asked the stack below its start (a set, or the white space before); the walk needs free
places on the stack"""
_UNIT = 4  # unit of counts in the marks: 1 taken from a count below the walk's start
_IS_FRAME = -1
_UNKNOWN = -1  # stands for a set of several words, whose names only the stack knows
_FIRST_CAPACITY = 1024


class Configurations(NamedTuple):
    """Row i of `parts` is configuration i + states as (state, top frame or -1, marks), or a stack frame as
    (value, frame below or -1, `_IS_FRAME`). A step is a configuration, `DEAD`, `UNDECIDED` or `NOT_COMPUTED`.
    """

    after_action: NDArray[np.int32]  # [actions]: steps by actions from states on which nothing was pushed
    rows: NDArray[np.int32]  # [capacity, classes]: steps from configurations
    parts: DistinctRows  # [capacity, 3]: configurations and frames


@njit(cache=True, nogil=True)
def no_configurations(machine):
    states, classes = machine.transitions.shape
    capacity = _FIRST_CAPACITY + 4 * states
    after_action = np.full(len(machine.actions), NOT_COMPUTED, np.int32)
    parts = no_rows(np.empty((capacity, 3), np.int32))
    return Configurations(after_action, np.empty((capacity, classes), np.int32), parts)


@njit(cache=True, nogil=True)
def grow(configurations):
    """The configurations with twice the capacity."""
    after_action, rows, parts = configurations
    return Configurations(after_action, longer(rows, 2 * len(rows)), grow_rows(parts))


@njit(cache=True, nogil=True)
def follow(machine, configurations, here, column):
    """Computes and stores the step from a configuration by a byte class, or returns `CONFIGURATIONS_FULL`."""
    if configurations.parts.used[0] + 3 > len(configurations.rows):
        return np.int32(CONFIGURATIONS_FULL)
    states = len(machine.transitions)
    state, frame, marks = np.int64(here), np.int64(-1), np.int64(0)
    if here >= states:
        state, frame, marks = configurations.parts.rows[here - states]
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
    known = configurations.parts.used[0]
    part = _part(configurations, state, frame, marks)
    if part == known:
        for column in range(machine.transitions.shape[1]):
            is_dead = machine.transitions[state, column] == DEAD
            configurations.rows[part, column] = DEAD if is_dead else NOT_COMPUTED
    return np.int32(len(machine.transitions) + part)


@njit(cache=True, nogil=True)
def _act(machine, configurations, action, frame, marks):
    """The step that an action makes from a frame."""
    parts = configurations.parts.rows
    kind, target, operand, reserve, gap, words = machine.actions[action, : WORDS + 1].astype(np.int64)
    is_count = kind in (COUNT, COUNT_CALL)
    value = np.int64(parts[frame, 0]) if frame >= 0 else np.int64(_UNKNOWN)
    is_unknown = frame < 0 or (kind != POP and value == _UNKNOWN)
    if is_unknown and kind in (POP, CLOSE):
        return np.int32(UNDECIDED)
    if frame < 0 and is_count and marks // _UNIT == TAIL:
        return np.int32(UNDECIDED)
    if gap:  # the walk continues as if the reply had chosen the widest way
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
    """The number of a row of `parts`, which is added if it is new. The caller ensures the capacity."""
    rows, new = configurations.parts.rows, configurations.parts.used[0]
    rows[new, 0], rows[new, 1], rows[new, 2] = first, second, third
    return number_next(configurations.parts)
