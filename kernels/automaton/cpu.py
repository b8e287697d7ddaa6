"""Stepping of pooled automata on the CPU, for numba.

`tables` are those of `AutomatonPool.tables`.
"""

from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from ..common.jit import compiled, inlined
from .act_cpu import act
from .layout import (
    CLASS_MAP,
    DEAD,
    DECIDED,
    DEFAULT,
    DEPTH,
    MASK,
    OPENERS,
    OWN,
    ROOMY_DEPTH,
    ROW,
    SHARED,
    STACK,
    STACK_PLACES,
    START,
    STATE,
    TOKENS,
)
from .rows import AutomatonRows

Ints: TypeAlias = NDArray[np.int32]
Tables: TypeAlias = tuple[NDArray[Any], ...]


def advance(rows: AutomatonRows, tokens: torch.Tensor) -> torch.Tensor:
    """Step the registers over tokens, int32 [rows]. Returns the new states, int32 [rows]."""
    return torch.from_numpy(_advance(*_arrays(rows), tokens.numpy()))


def mask(
    rows: AutomatonRows, lists: torch.Tensor, tokens: torch.Tensor, masks: torch.Tensor, own_masks: int
) -> torch.Tensor:
    """See `AutomatonPool.mask`. Returns the index of each row's mask, int32 [rows]."""
    return torch.from_numpy(_mask(*_arrays(rows), lists.numpy(), tokens.numpy(), masks.numpy(), own_masks))


def _arrays(rows: AutomatonRows) -> tuple[Ints, Ints, Tables]:
    return rows.slots.numpy(), rows.registers.numpy(), tuple(table.numpy() for table in rows.tables)


@inlined
def _walk(state: int, depth: int, stack: Ints, token: int, tables: Tables) -> tuple[int, int, int]:
    """The state and depth after a token's bytes, and the number of bytes stepped: fewer than all if a byte is
    dead.

    Changes the stack in place."""
    spans, token_bytes, state_rows, class_maps, entries, actions, returns = tables
    at = spans[token, 0]
    while at < spans[token, 1] and state != DEAD:
        kind = class_maps[state_rows[state, CLASS_MAP], token_bytes[at]]
        place = state_rows[state, ROW] + kind
        entry = entries[place, 0]
        if entries[place, 1] != state:
            default = state_rows[state, DEFAULT]
            place = state_rows[default, ROW] + kind
            entry = entries[place, 0] if entries[place, 1] == default else DEAD
        if entry >= 0:
            state = entry
        else:
            state, depth = act(actions, -1 - entry, depth, stack, returns)
        at += 1
    return state, depth, at - spans[token, 0]


@compiled
def _advance(slots: Ints, registers: Ints, tables: Tables, tokens: Ints) -> Ints:
    states = np.empty(len(slots), np.int32)
    for row in range(len(slots)):
        own = registers[slots[row]]
        if own[STATE] >= 0:
            own[STATE], own[DEPTH], _ = _walk(own[STATE], own[DEPTH], own[STACK:], tokens[row], tables)
        states[row] = own[STATE]
    return states


@compiled
def _mask(
    slots: Ints, registers: Ints, tables: Tables, lists: Ints, tokens: Ints, masks: Ints, own_masks: int
) -> NDArray[np.int32]:
    state_rows = tables[2]
    index = np.full(len(slots), -1, np.int32)
    for row in range(len(slots)):
        own = registers[slots[row]]
        if own[STATE] < 0:
            continue
        state_row = state_rows[own[STATE]]
        index[row] = state_row[MASK]
        decided = lists[state_row[DECIDED]]
        count = decided[TOKENS]
        if own[DEPTH] > decided[ROOMY_DEPTH]:
            count += decided[OPENERS]
        shared, differing = lists[state_row[SHARED]], lists[state_row[OWN]]
        if shared[TOKENS] + differing[TOKENS] + count > 0:
            index[row] = own_masks + slots[row]
            words, whole = masks[index[row]], masks[state_row[MASK]]
            for word in range(len(words)):  # a loop compiles to wider moves than a slice assignment
                words[word] = whole[word]
            _flip(words, tokens[shared[START] : shared[START] + shared[TOKENS]])
            _flip(words, tokens[differing[START] : differing[START] + differing[TOKENS]])
            _decide(own, tables, tokens[decided[START] : decided[START] + count], words)
    return index


@inlined
def _flip(words: Ints, tokens: Ints) -> None:
    for token in tokens:
        words[token >> 5] ^= np.int32(1) << np.int32(token & 31)


@compiled
def _decide(own: Ints, tables: Tables, tokens: Ints, words: Ints) -> None:
    """Set the bits of the tokens that these registers accept and clear those of the others.

    Tokens are nearly sorted: one that shares the previous token's bytes up to its dead byte is dead too.
    """
    spans, token_bytes = tables[0], tables[1]
    stack = np.empty(STACK_PLACES, np.int32)
    dead_start, dead_length = 0, 0
    for token in tokens:
        start, end = spans[token, 0], spans[token, 1]
        bit = np.int32(1) << np.int32(token & 31)
        common = 0
        if 0 < dead_length <= end - start:
            while common < dead_length and token_bytes[start + common] == token_bytes[dead_start + common]:
                common += 1
        if 0 < dead_length == common:
            words[token >> 5] &= ~bit
            continue
        for level in range(own[DEPTH]):
            stack[level] = own[STACK + level]
        state, _, taken = _walk(own[STATE], own[DEPTH], stack, token, tables)
        words[token >> 5] = words[token >> 5] & ~bit if state == DEAD else words[token >> 5] | bit
        dead_start, dead_length = start, taken if state == DEAD else 0
