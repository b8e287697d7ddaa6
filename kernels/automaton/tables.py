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
    """A state's entry for a byte is the next state, -1 for a dead byte, or -2 - a for action a.

    The entry is `entries[row_starts[state] + class_of_byte[byte]]` if `owners` names the state there;
    otherwise the entry of `default_state[state]`, found the same way; otherwise the byte is dead.

    Actions are (kind, target, operand, room, *names); most go to target. An action is dead if the stack has
    fewer than `room` places left of `STACK_DEPTH` (negative: of the two beyond it), if the stack lacks the
    values that the action reads, or if `returns` has -1: GO; PUSH operand; POP r and go to `returns[r +
    operand]`; CALL: PUSH in a string, with room -1;
    COUNT: subtract 1 from the top and go to operand if that leaves 0; COUNT_CALL: subtract 1 from the top and
    CALL operand, or operand + 1 if that left 0; DROP the top.

    A set of names takes up to `SET_WORDS` places of `WORD_NAMES` bits; its first word is on the top.
    OPEN: PUSH operand and an empty set of `names[0]` words; then, of the `names[1]` FULL rows from `names[2]`
    rows on, add the names of those whose room the stack lacks. SEE: add name operand to the set on the top,
    dead if the set has it. NEED: dead if the set has all of `names`. CLOSE: dead if the set, of target words,
    lacks any of `names`, otherwise drop the set and POP.

    A state's mask begins as `masks[mask_of_state[state]]`, packed as in `TokenMask` (-1: no token). The
    tokens in lists `lists_of_state[state, 0]` and `[state, 1]` flip their bits, one list after the other. A
    token in list `[state, 2]` is allowed if the row's own stack accepts its bytes; the last
    `opener_counts[list]` of them push or open, so the mask is right about them until the stack is nearly
    full. List i is `list_tokens[list_offsets[i] : list_offsets[i + 1]]`. No token is twice in a list.
    End-of-sequence tokens are in masks and lists like other tokens.
    """

    class_of_byte: NDArray[np.uint8]  # [256]
    row_starts: NDArray[np.int32]  # [states]
    default_state: NDArray[np.int32]  # [states]
    entries: NDArray[np.int32]  # [places]; from each row's start there is one for each class
    owners: NDArray[np.int32]  # [places], the state of each entry, or -1
    mask_of_state: NDArray[np.int32]  # [states]
    masks: NDArray[np.int32]  # [n, ceil(vocab / 32)]
    lists_of_state: NDArray[np.int32]  # [states, 3]
    list_offsets: NDArray[np.int32]  # [lists + 1]
    list_tokens: NDArray[np.int32]
    opener_counts: NDArray[np.int32]  # [lists]
    actions: NDArray[np.int32] = field(default_factory=_no_actions)  # [actions, ACTION_COLUMNS]
    returns: NDArray[np.int32] = field(default_factory=_none)
