"""One grammar's automaton as its compiler numbers it."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .layout import ACTION_COLUMNS


def _none() -> NDArray[np.int32]:
    return np.zeros(0, np.int32)


def _no_actions() -> NDArray[np.int32]:
    return np.zeros((0, ACTION_COLUMNS), np.int32)


@dataclass(frozen=True, eq=False)
class Tables:
    """A state's entry for a byte is the next state; -1: none; -2 - a: what action a does.

    It is `entries[row_starts[state] + class_of_byte[byte]]` if `owners` has the state there; if not, the
    entry of `default_state[state]`, found the same way; and none if it has none either.

    Actions are (kind, target, operand, room, *names); most go to target. They lead nowhere where the stack
    has less than `room` places left of `STACK_DEPTH` (less than 0: of the two beyond it), where it lacks what
    they read on its top, or where `returns` says -1:
    GO; PUSH operand; POP r and go to `returns[r + operand]`; CALL: PUSH in a string, with room -1;
    COUNT: take 1 from the top, and go to operand if that leaves 0; COUNT_CALL: take 1 from the top and
    CALL operand, or operand + 1 if that left 0; DROP the top.

    A set of names takes up to `SET_WORDS` places, `WORD_NAMES` bits each, and its first word is on the top.
    OPEN: PUSH operand and an empty set of `names[0]` words, to which it adds the names of those of the
    `names[1]` actions FULL, the first of them `names[2]` rows on, whose room is not there; SEE: add name
    operand to the set on the top, nowhere if it has it; NEED: nowhere if the set has all of `names`; CLOSE:
    nowhere if the set, of target words, lacks some of `names`, else drop it and POP.

    A state's mask begins as `masks[mask_of_state[state]]`, packed as in `TokenMask` (-1: no token). Tokens in
    lists `lists_of_state[state, 0]` and `[state, 1]` change sides, each list in turn. Those in list
    `[state, 2]` are allowed if they lead somewhere from the row's own stack; its last `opener_counts[list]`
    tokens push or open, so the mask is right about them until the stack is nearly full. List i is
    `list_tokens[list_offsets[i] : list_offsets[i + 1]]`. No token changes sides twice in a list. Ends of
    sequence are in masks and lists like other tokens.
    """

    class_of_byte: NDArray[np.uint8]  # [256]
    row_starts: NDArray[np.int32]  # [states]
    default_state: NDArray[np.int32]  # [states]
    entries: NDArray[np.int32]  # [places]; from each row's start on there are as many as classes
    owners: NDArray[np.int32]  # [places], -1 for nobody
    mask_of_state: NDArray[np.int32]  # [states]
    masks: NDArray[np.int32]  # [n, ceil(vocab / 32)]
    lists_of_state: NDArray[np.int32]  # [states, 3]
    list_offsets: NDArray[np.int32]  # [lists + 1]
    list_tokens: NDArray[np.int32]
    opener_counts: NDArray[np.int32]  # [lists]
    actions: NDArray[np.int32] = field(default_factory=_no_actions)  # [actions, ACTION_COLUMNS]
    returns: NDArray[np.int32] = field(default_factory=_none)
