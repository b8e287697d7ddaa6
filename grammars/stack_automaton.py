"""A byte automaton with a stack of return addresses: what nested JSON needs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

DEAD = -1
PUSH, POP = 0, 1
MAX_DEPTH = 32


@dataclass(frozen=True, eq=False)
class StackAutomaton:
    """`transitions[state, class_of_byte[byte]]` is the next state, `DEAD`, or -2 - action.

    actions[a] = (PUSH, target, base): push `base` and go to `target`; dead if the stack holds `max_depth`.
    actions[a] = (POP, 0, verdict): pop `base` and go to `returns[base + verdict]`, which may be `DEAD`.
    A text may end in an accepting state, which is reached with an empty stack only.
    """

    start: int
    class_of_byte: NDArray[np.uint8]  # [256]
    transitions: NDArray[np.int32]  # [states, classes]
    actions: NDArray[np.int32]  # [actions, 3]
    returns: NDArray[np.int32]
    accepting: NDArray[np.bool_]  # [states]
    max_depth: int = MAX_DEPTH

    @property
    def nbytes(self) -> int:
        return self.transitions.nbytes + self.actions.nbytes + self.returns.nbytes

    def step(self, state: int, stack: list[int], byte: int) -> int:
        """The next state or `DEAD`; changes the stack."""
        entry = int(self.transitions[state, self.class_of_byte[byte]])
        if entry >= DEAD:
            return entry
        kind, target, operand = self.actions[-2 - entry].tolist()
        if kind == PUSH:
            if len(stack) == self.max_depth:
                return DEAD
            stack.append(operand)
            return int(target)
        return int(self.returns[stack.pop() + operand]) if stack else DEAD

    def accepts(self, text: bytes) -> bool:
        stack: list[int] = []
        state = self.start
        for byte in text:
            state = self.step(state, stack, byte)
            if state < 0:
                return False
        return bool(self.accepting[state]) and not stack


@njit(cache=True, nogil=True)
def run_bytes(  # type: ignore[no-untyped-def]
    transitions, class_of_byte, actions, returns, stack, depth, state, text
):
    """Steps over all bytes of `text`. Returns the state, DEAD if none, and the depth; changes `stack`."""
    for byte in text:
        entry = transitions[state, class_of_byte[byte]]
        if entry >= 0:
            state = entry
        elif entry == -1:
            return -1, depth
        elif actions[-2 - entry, 0] == 0:
            if depth == len(stack):
                return -1, depth
            stack[depth] = actions[-2 - entry, 2]
            depth += 1
            state = actions[-2 - entry, 1]
        else:
            if depth == 0:
                return -1, depth
            depth -= 1
            state = returns[stack[depth] + actions[-2 - entry, 2]]
            if state < 0:
                return -1, depth
    return state, depth
