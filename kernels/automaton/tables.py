"""One grammar's automaton as its compiler numbers it."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


def _none() -> NDArray[np.int32]:
    return np.zeros(0, np.int32)


def _no_actions() -> NDArray[np.int32]:
    return np.zeros((0, 4), np.int32)


@dataclass(frozen=True, eq=False)
class Tables:
    """`transitions[state, class_of_byte[byte]]` is the next state; -1: none; -2 - a: what action a does.

    Actions are (kind, target, operand, room); most go to target. They lead nowhere where the stack has less
    than `room` places left of `STACK_DEPTH` (less than 0: of the two beyond it), where it lacks what they
    read on its top, or where `returns` says -1:
    GO; PUSH operand; POP r and go to `returns[r + operand]`; CALL: PUSH in a string, with room -1;
    COUNT: take 1 from the top, and go to operand if that leaves 0; COUNT_CALL: take 1 from the top and
    CALL operand, or operand + 1 if that left 0; DROP the top; OPEN: PUSH operand and an empty set; SEE: add
    bit operand to the set on the top, nowhere if it has it; NEED: nowhere if the set has all of the bits
    operand; CLOSE: nowhere if the set lacks some of the bits target, else DROP it and POP.

    `masks[mask_of_state[state]]`, packed as in `TokenMask`, has the tokens that every stack allows, ends of
    sequence included, and those that only a nearly full stack refuses (openers). What the stack decides is
    list `context_of_state[state]` (-1: none; empty array: no state has any), which is
    `context_tokens[context_offsets[list] : context_offsets[list + 1]]`: tokens without a bit in the mask,
    then `opener_counts[list]` openers.
    """

    class_of_byte: NDArray[np.uint8]  # [256]
    transitions: NDArray[np.int32]  # [states, classes]
    mask_of_state: NDArray[np.int32]  # [states]
    masks: NDArray[np.int32]  # [n ≥ 1, ceil(vocab / 32)]
    actions: NDArray[np.int32] = field(default_factory=_no_actions)  # [actions, 4]
    returns: NDArray[np.int32] = field(default_factory=_none)
    context_of_state: NDArray[np.int32] = field(default_factory=_none)  # [states], or empty
    context_offsets: NDArray[np.int32] = field(default_factory=_none)  # [lists + 1]
    context_tokens: NDArray[np.int32] = field(default_factory=_none)
    opener_counts: NDArray[np.int32] = field(default_factory=_none)  # [lists]
