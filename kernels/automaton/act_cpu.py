"""What an automaton's action does to a row's stack, for numba. `Tables` says what the actions are."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..sampling.jit import inlined
from .layout import (
    CALL,
    COUNT,
    COUNT_CALL,
    DEAD,
    DROP,
    GO,
    NEED,
    OPEN,
    POP,
    PUSH,
    SEE,
    STACK_DEPTH,
)

Ints: TypeAlias = NDArray[np.int32]


@inlined
def act(action: Ints, depth: int, stack: Ints, returns: Ints) -> tuple[int, int]:
    """State and depth after action (kind, target, operand, room); the stack changes in place."""
    kind = action[0]
    if depth + action[3] > STACK_DEPTH:
        return DEAD, depth
    if kind == GO:
        return action[1], depth
    if kind in (PUSH, CALL, OPEN):
        return _grow(kind, action[1], action[2], depth, stack)
    if depth == 0:
        return DEAD, depth
    if kind == POP:
        return returns[stack[depth - 1] + action[2]], depth - 1
    if kind == DROP:
        return action[1], depth - 1
    if kind in (COUNT, COUNT_CALL):
        return _count(kind, action[1], action[2], depth, stack)
    return _look_up(kind, action[1], action[2], depth, stack, returns)


@inlined
def _grow(kind: int, target: int, operand: int, depth: int, stack: Ints) -> tuple[int, int]:
    after = depth + (2 if kind == OPEN else 1)
    stack[after - 1] = 0
    stack[depth] = operand
    return target, after


@inlined
def _count(kind: int, target: int, operand: int, depth: int, stack: Ints) -> tuple[int, int]:
    left = stack[depth - 1] - 1
    stack[depth - 1] = left
    if kind == COUNT:
        return (operand if left == 0 else target), depth
    stack[depth] = operand + (1 if left == 0 else 0)
    return target, depth + 1


@inlined
def _look_up(kind: int, target: int, operand: int, depth: int, stack: Ints, returns: Ints) -> tuple[int, int]:
    """See, need or close: the set on the top decides."""
    seen = stack[depth - 1]
    if kind == SEE:
        stack[depth - 1] = seen | 1 << operand
        return (DEAD if seen >> operand & 1 else target), depth
    if kind == NEED:
        return (DEAD if seen & operand == operand else target), depth
    if depth == 1 or seen & target != target:
        return DEAD, depth
    return returns[stack[depth - 2] + operand], depth - 2
