"""Steps pooled automata on the CPU, compiled by numba. `AutomatonTables` describes the tables."""

from typing import NamedTuple, TypeAlias

import numba
import numpy as np
import torch
from numpy.typing import NDArray

from ...runtime.automaton_format import (
    ACTION_COLUMNS,
    DEAD,
    DECIDED,
    DEFAULT,
    ENTRY,
    ENTRY_COLUMNS,
    LIST_COLUMNS,
    MASK,
    NO_AUTOMATON,
    NO_MASK,
    OPENERS,
    OWN,
    OWNER,
    ROW_START,
    SAFE_DEPTH,
    SHARED,
    STACK_PLACES,
    START,
    STATE_COLUMNS,
    TOKENS,
)
from ..common.jit import compiled, inlined
from ..common.numba_tools import pointer
from .act_cpu import act
from .layout import (
    ACTION_0,
    ACTIONS,
    CLASS_MAP,
    CLASS_MAPS,
    DEPTH,
    ENTRIES,
    ENTRY_0,
    GRAMMAR,
    GRAMMAR_COLUMNS,
    GRAMMARS,
    LIST_0,
    LIST_TOKENS,
    LISTS,
    MASK_0,
    MASKS,
    NO_TOKENS,
    RETURN_0,
    RETURNS,
    SPANS,
    STACK,
    STATE,
    STATE_0,
    STATES,
    TOKEN_0,
    TOKEN_BYTES,
)
from .rows import AutomatonRows, PoolTables

Ints: TypeAlias = NDArray[np.int32]

MANY = 1 << 31
"""a bound of array lengths that the kernel is not told: more than any table's rows"""
_INT, _BYTE = np.int32(0), np.uint8(0)


class Automaton(NamedTuple):
    """The tables of one grammar that a step reads: views of the pool's tables from the grammar's start."""

    class_of_byte: NDArray[np.uint8]
    states: Ints
    entries: Ints
    actions: Ints
    returns: Ints


def advance(rows: AutomatonRows, tokens: torch.Tensor) -> torch.Tensor:
    """Step the registers over tokens, int32 [rows]. Returns the new states, int32 [rows]."""
    return torch.from_numpy(_advance(*arrays(rows), tokens.numpy()))


def mask(rows: AutomatonRows, own_masks: int) -> torch.Tensor:
    """Writes the masks of rows. Returns the index of each row's mask in the pool's, int32 [rows]."""
    return torch.from_numpy(_mask(*arrays(rows), own_masks))


def arrays(rows: AutomatonRows) -> tuple[Ints, Ints, PoolTables]:
    """Slots, registers and tables of the rows as arrays."""
    assert rows.tables is not None
    return rows.slots.numpy(), rows.registers.numpy(), rows.tables


@inlined
def _automaton(tables: PoolTables, grammar: Ints) -> Automaton:
    return Automaton(
        tables.class_maps[grammar[CLASS_MAP]],
        tables.states[grammar[STATE_0] :],
        tables.entries[grammar[ENTRY_0] :],
        tables.actions[grammar[ACTION_0] :],
        tables.returns[grammar[RETURN_0] :],
    )


@inlined
def _walk(
    state: int, depth: int, stack: Ints, text: NDArray[np.uint8], automaton: Automaton
) -> tuple[int, int, int]:
    """Steps over a text. Returns the state, the depth and the number of bytes before the first dead one.

    Changes the stack in place."""
    class_of_byte, states, entries, actions, returns = automaton
    taken = 0
    while taken < len(text) and state != DEAD:
        kind = class_of_byte[text[taken]]
        place = states[state, ROW_START] + kind
        entry = entries[place, ENTRY]
        if entries[place, OWNER] != state:
            default = states[state, DEFAULT]
            place = states[default, ROW_START] + kind
            entry = entries[place, ENTRY] if entries[place, OWNER] == default else DEAD
        if entry >= DEAD:
            state = entry
        else:
            state, depth = act(actions, -2 - entry, depth, stack, returns)
        taken += 1
    return state, depth, taken


@compiled
def _advance(slots: Ints, registers: Ints, tables: PoolTables, tokens: Ints) -> Ints:
    states = np.empty(len(slots), np.int32)
    for row in range(len(slots)):
        states[row] = advance_row(registers[slots[row]], tables, tokens[row])
    return states


@compiled
def advance_row(own: Ints, tables: PoolTables, token: int) -> int:
    """Step a slot's registers over a token. Returns the new state."""
    if own[STATE] >= 0:
        automaton = _automaton(tables, tables.grammars[own[GRAMMAR]])
        start, end = tables.spans[token]
        text = tables.token_bytes[start:end]
        own[STATE], own[DEPTH], _ = _walk(own[STATE], own[DEPTH], own[STACK:], text, automaton)
    state: int = own[STATE]
    return state


@compiled
def _mask(slots: Ints, registers: Ints, tables: PoolTables, own_masks: int) -> Ints:
    index = np.empty(len(slots), np.int32)
    for row in range(len(slots)):
        index[row] = mask_row(registers[slots[row]], tables, own_masks + row)
    return index


@compiled
def step_ahead(
    slots: Ints, offsets: Ints, drafts: Ints, registers: Ints, tables: PoolTables, ahead: Ints
) -> None:
    """Writes each row's registers to `ahead`: its slot's, stepped over the drafts before the row."""
    for row in range(len(slots)):
        if offsets[row] == 0:
            ahead[row] = registers[slots[row]]
        else:
            ahead[row] = ahead[row - 1]
            advance_row(ahead[row], tables, drafts[row - 1])


@compiled
def count_live(slots: Ints, counts: Ints, drafts: Ints, registers: Ints, tables: PoolTables) -> Ints:
    """See `AutomatonPool.count_live`."""
    live, start = counts.copy(), 0
    for row in range(len(slots)):
        own = registers[slots[row]].copy()
        if own[STATE] != NO_AUTOMATON:
            for at in range(counts[row]):
                if advance_row(own, tables, drafts[start + at]) == DEAD:
                    live[row] = at
                    break
        start += counts[row]
    return live


@compiled
def mask_row(own: Ints, tables: PoolTables, own_mask: int) -> int:
    """Returns the index in `tables.masks` of the mask for a slot's registers `own`, or -1. If the state
    has lists, first writes the mask at index `own_mask`."""
    if own[STATE] == NO_AUTOMATON:
        return -1
    if own[STATE] == DEAD:
        return NO_TOKENS
    masks, grammar = tables.masks, tables.grammars[own[GRAMMAR]]
    state = tables.states[grammar[STATE_0] + own[STATE]]
    lists, tokens = tables.lists[grammar[LIST_0] :], tables.list_tokens[grammar[TOKEN_0] :]
    index = NO_TOKENS
    if state[MASK] != NO_MASK:
        index = grammar[MASK_0] + state[MASK]
    decided = lists[state[DECIDED]]
    count = decided[TOKENS]
    if own[DEPTH] > decided[SAFE_DEPTH]:
        count += decided[OPENERS]
    shared, differing = lists[state[SHARED]], lists[state[OWN]]
    if shared[TOKENS] + differing[TOKENS] + count == 0:
        return index
    words, whole = masks[own_mask], masks[index]
    for word in range(len(words)):  # a loop compiles to wider moves than a slice assignment
        words[word] = whole[word]
    _flip(words, tokens[shared[START] : shared[START] + shared[TOKENS]])
    _flip(words, tokens[differing[START] : differing[START] + differing[TOKENS]])
    some = tokens[decided[START] : decided[START] + count]
    _decide(own, tables.spans, tables.token_bytes, _automaton(tables, grammar), some, words)
    return own_mask


@inlined
def _flip(words: Ints, tokens: Ints) -> None:
    for token in tokens:
        words[token >> 5] ^= np.int32(1) << np.int32(token & 31)


@compiled
def _decide(
    own: Ints,
    spans: Ints,
    token_bytes: NDArray[np.uint8],
    automaton: Automaton,
    tokens: Ints,
    words: Ints,
) -> None:
    """Set the bits of the tokens that the registers `own` accept and clear those of the other tokens.

    Tokens are nearly sorted: one that shares the previous token's bytes up to its dead byte is dead too.
    """
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
        state, _, taken = _walk(own[STATE], own[DEPTH], stack, token_bytes[start:end], automaton)
        words[token >> 5] = words[token >> 5] & ~bit if state == DEAD else words[token >> 5] | bit
        dead_start, dead_length = start, taken if state == DEAD else 0


@inlined
def tables_at(addresses, words):
    """The `PoolTables` at these addresses, int64 [TABLES]. words: the length of a mask in words"""
    return PoolTables(
        _table(addresses[SPANS], _INT, 2),
        numba.carray(pointer(addresses[TOKEN_BYTES], _BYTE), (MANY,)),
        _table(addresses[GRAMMARS], _INT, GRAMMAR_COLUMNS),
        _table(addresses[CLASS_MAPS], _BYTE, 256),
        _table(addresses[STATES], _INT, STATE_COLUMNS),
        _table(addresses[ENTRIES], _INT, ENTRY_COLUMNS),
        _table(addresses[ACTIONS], _INT, ACTION_COLUMNS),
        numba.carray(pointer(addresses[RETURNS], _INT), (MANY,)),
        _table(addresses[MASKS], _INT, words),
        _table(addresses[LISTS], _INT, LIST_COLUMNS),
        numba.carray(pointer(addresses[LIST_TOKENS], _INT), (MANY,)),
    )


@inlined
def _table(address, kind, columns):
    return numba.carray(pointer(address, kind), (MANY, columns))
