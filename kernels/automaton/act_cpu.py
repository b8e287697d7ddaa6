"""Applies an automaton's actions to a row's stack, compiled by numba. `AutomatonTables` describes actions."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...runtime.automaton_format import (
    CALL,
    COUNT,
    COUNT_CALL,
    DEAD,
    DROP,
    FIRST_FULL,
    FULL_ROWS,
    GAP,
    GO,
    HAVE,
    KIND,
    LINES,
    NAMES,
    NEED,
    OPEN,
    OPERAND,
    POP,
    PUSH,
    RESERVE,
    SEE,
    SET_WORDS,
    STACK_DEPTH,
    STYLE,
    TARGET,
    WORD_NAMES,
    WORDS,
)
from ...runtime.json_gaps import DEAD_WAY, pass_gap
from ..common.jit import inlined

Ints: TypeAlias = NDArray[np.int32]
_pass_gap = inlined(pass_gap)


@inlined
def act(actions: Ints, number: int, depth: int, stack: Ints, returns: Ints):
    """Applies an action to the stack in place. Returns the new state and depth."""
    action = actions[number]
    kind = action[KIND]
    if depth + action[RESERVE] > STACK_DEPTH:
        return DEAD, depth
    way = 0
    if action[GAP]:
        way, stack[STYLE], stack[LINES] = _pass_gap(action[GAP], stack[STYLE], stack[LINES])
        if way == DEAD_WAY:
            return DEAD, depth
    if kind == GO:
        return action[TARGET] + way, depth
    if kind in (PUSH, CALL):
        stack[depth] = action[OPERAND]
        return action[TARGET] + way, depth + 1
    if kind == OPEN:
        _open(actions, number, depth, stack)
        return action[TARGET] + way, depth + 1 + action[WORDS]
    if depth == 0:
        return DEAD, depth
    if kind == POP:
        return returns[stack[depth - 1] + action[OPERAND]], depth - 1
    if kind == DROP:
        return action[TARGET], depth - 1
    if kind in (COUNT, COUNT_CALL):
        return _count(kind, action[TARGET], action[OPERAND], depth, stack)
    if kind == SEE:
        return _see(action[TARGET], action[OPERAND], depth, stack)
    return _look_up(action, way, depth, stack, returns)


@inlined
def _open(actions: Ints, number: int, depth: int, stack: Ints) -> None:
    words = actions[number, WORDS]
    stack[depth] = actions[number, OPERAND]
    for word in range(words):
        stack[depth + words - word] = 0
    first = number + actions[number, FIRST_FULL]
    for row in range(first, first + actions[number, FULL_ROWS]):
        if depth + actions[row, RESERVE] > STACK_DEPTH:
            for word in range(words):
                stack[depth + words - word] |= actions[row, NAMES + word]


@inlined
def _count(kind: int, target: int, operand: int, depth: int, stack: Ints) -> tuple[int, int]:
    left = stack[depth - 1] - 1
    stack[depth - 1] = left
    if kind == COUNT:
        return (operand if left == 0 else target), depth
    stack[depth] = operand + (1 if left == 0 else 0)
    return target, depth + 1


@inlined
def _see(target: int, name: int, depth: int, stack: Ints) -> tuple[int, int]:
    place, bit = depth - 1 - name // WORD_NAMES, name % WORD_NAMES
    seen = stack[place]
    stack[place] = seen | 1 << bit
    return (DEAD if seen >> bit & 1 else target), depth


@inlined
def _look_up(action: Ints, way: int, depth: int, stack: Ints, returns: Ints) -> tuple[int, int]:
    """Applies NEED, HAVE or CLOSE, which test the set on top of the stack. Returns state and depth."""
    has_all = True
    for word in range(SET_WORDS):
        names = action[NAMES + word]
        if names and stack[depth - 1 - word] & names != names:
            has_all = False
    if action[KIND] in (NEED, HAVE):
        return (action[TARGET] + way if has_all == (action[KIND] == HAVE) else DEAD), depth
    below = depth - 1 - action[TARGET]
    if below < 0 or not has_all:
        return DEAD, depth
    return returns[stack[below] + action[OPERAND]], below
