"""Stepping of pooled automata on the CPU, for numba.

`tables` are those of `AutomatonPool.tables`.
"""

from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from ..sampling.batch import AutomatonRows
from ..sampling.jit import compiled, inlined
from .act_cpu import act
from .layout import (
    CLASS_MAP,
    DEAD,
    DECIDED_COUNT,
    DECIDED_START,
    DEPTH,
    FIRST_TRANSITION,
    MASK,
    OPENER_COUNT,
    OWN_COUNT,
    OWN_START,
    ROOMY_DEPTH,
    SHARED_COUNT,
    SHARED_START,
    STACK,
    STACK_PLACES,
    STATE,
)

Ints: TypeAlias = NDArray[np.int32]
Tables: TypeAlias = tuple[NDArray[Any], ...]


def advance(rows: AutomatonRows, tokens: torch.Tensor) -> torch.Tensor:
    """Move registers over tokens, int32 [rows]; return the states after them, int32 [rows]."""
    return torch.from_numpy(_advance(*_arrays(rows), tokens.numpy()))


def mask(rows: AutomatonRows, lists: torch.Tensor, masks: torch.Tensor, own_masks: int) -> torch.Tensor:
    """See `AutomatonPool.mask`; the rows' indices into masks, int32 [rows]."""
    return torch.from_numpy(_mask(*_arrays(rows), lists.numpy(), masks.numpy(), own_masks))


def _arrays(rows: AutomatonRows) -> tuple[Ints, Ints, Tables]:
    return rows.slots.numpy(), rows.registers.numpy(), tuple(table.numpy() for table in rows.tables)


@inlined
def _walk(state: int, depth: int, stack: Ints, token: int, tables: Tables) -> tuple[int, int]:
    """State and depth after a token's bytes; the stack changes in place."""
    spans, token_bytes, state_rows, class_maps, transitions, actions, returns = tables
    for at in range(spans[token, 0], spans[token, 1]):
        kind = class_maps[state_rows[state, CLASS_MAP], token_bytes[at]]
        entry = transitions[state_rows[state, FIRST_TRANSITION] + kind]
        if entry >= 0:
            state = entry
        else:
            state, depth = act(actions[-1 - entry], depth, stack, returns)
    return state, depth


@compiled
def _advance(slots: Ints, registers: Ints, tables: Tables, tokens: Ints) -> Ints:
    states = np.empty(len(slots), np.int32)
    for row in range(len(slots)):
        own = registers[slots[row]]
        if own[STATE] >= 0:
            own[STATE], own[DEPTH] = _walk(own[STATE], own[DEPTH], own[STACK:], tokens[row], tables)
        states[row] = own[STATE]
    return states


@compiled
def _mask(
    slots: Ints, registers: Ints, tables: Tables, lists: Ints, masks: Ints, own_masks: int
) -> NDArray[np.int32]:
    state_rows = tables[2]
    index = np.full(len(slots), -1, np.int32)
    for row in range(len(slots)):
        own = registers[slots[row]]
        if own[STATE] < 0:
            continue
        state_row = state_rows[own[STATE]]
        index[row] = state_row[MASK]
        shared, differing, decided = state_row[SHARED_COUNT], state_row[OWN_COUNT], state_row[DECIDED_COUNT]
        if own[DEPTH] > state_row[ROOMY_DEPTH]:
            decided += state_row[OPENER_COUNT]
        if shared + differing + decided > 0:
            index[row] = own_masks + slots[row]
            words = masks[index[row]]
            words[:] = masks[state_row[MASK]]
            _flip(words, lists[state_row[SHARED_START] : state_row[SHARED_START] + shared])
            _flip(words, lists[state_row[OWN_START] : state_row[OWN_START] + differing])
            _decide(own, tables, lists[state_row[DECIDED_START] : state_row[DECIDED_START] + decided], words)
    return index


@inlined
def _flip(words: Ints, tokens: Ints) -> None:
    for token in tokens:
        words[token >> 5] ^= np.int32(1) << np.int32(token & 31)


@compiled
def _decide(own: Ints, tables: Tables, tokens: Ints, words: Ints) -> None:
    """Set the bits of the tokens that lead somewhere from these registers, clear those of the others."""
    stack = np.empty(STACK_PLACES, np.int32)
    for token in tokens:
        for level in range(own[DEPTH]):
            stack[level] = own[STACK + level]
        state, _ = _walk(own[STATE], own[DEPTH], stack, token, tables)
        bit = np.int32(1) << np.int32(token & 31)
        words[token >> 5] = words[token >> 5] & ~bit if state == DEAD else words[token >> 5] | bit
