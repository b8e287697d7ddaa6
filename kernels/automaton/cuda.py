"""Steps pooled automata on CUDA. Lanes step together; each has its own stack in registers."""

import torch
import triton
import triton.language as tl

from ...runtime import automaton_format
from . import layout
from .act_cuda import act
from .rows import SlotRegisters

LANES = 256
TILE = 1024
DECIDERS = 4
"""number of programs that share the undecided tokens of one row"""
DEAD = tl.constexpr(automaton_format.DEAD)
NO_AUTOMATON = tl.constexpr(automaton_format.NO_AUTOMATON)
NO_MASK = tl.constexpr(automaton_format.NO_MASK)
STACK_PLACES = tl.constexpr(automaton_format.STACK_PLACES)
STATE_COLUMNS = tl.constexpr(automaton_format.STATE_COLUMNS)
ROW_START = tl.constexpr(automaton_format.ROW_START)
DEFAULT = tl.constexpr(automaton_format.DEFAULT)
MASK = tl.constexpr(automaton_format.MASK)
SHARED = tl.constexpr(automaton_format.SHARED)
OWN = tl.constexpr(automaton_format.OWN)
DECIDED = tl.constexpr(automaton_format.DECIDED)
ENTRY_COLUMNS = tl.constexpr(automaton_format.ENTRY_COLUMNS)
OWNER = tl.constexpr(automaton_format.OWNER)
ACTION_COLUMNS = tl.constexpr(automaton_format.ACTION_COLUMNS)
LIST_COLUMNS = tl.constexpr(automaton_format.LIST_COLUMNS)
START = tl.constexpr(automaton_format.START)
TOKENS = tl.constexpr(automaton_format.TOKENS)
OPENERS = tl.constexpr(automaton_format.OPENERS)
SAFE_DEPTH = tl.constexpr(automaton_format.SAFE_DEPTH)
REGISTERS = tl.constexpr(layout.REGISTERS)
DEPTH = tl.constexpr(layout.DEPTH)
GRAMMAR = tl.constexpr(layout.GRAMMAR)
STACK = tl.constexpr(layout.STACK)
GRAMMAR_COLUMNS = tl.constexpr(layout.GRAMMAR_COLUMNS)
CLASS_MAP = tl.constexpr(layout.CLASS_MAP)
STATE_0 = tl.constexpr(layout.STATE_0)
ENTRY_0 = tl.constexpr(layout.ENTRY_0)
ACTION_0 = tl.constexpr(layout.ACTION_0)
RETURN_0 = tl.constexpr(layout.RETURN_0)
MASK_0 = tl.constexpr(layout.MASK_0)
LIST_0 = tl.constexpr(layout.LIST_0)
TOKEN_0 = tl.constexpr(layout.TOKEN_0)
NO_TOKENS = tl.constexpr(layout.NO_TOKENS)
UNCHANGED = tl.constexpr(-1)
SPANS = tl.constexpr(layout.SPANS)
TOKEN_BYTES = tl.constexpr(layout.TOKEN_BYTES)
GRAMMARS = tl.constexpr(layout.GRAMMARS)
CLASS_MAPS = tl.constexpr(layout.CLASS_MAPS)
STATES = tl.constexpr(layout.STATES)
ENTRIES = tl.constexpr(layout.ENTRIES)
ACTIONS = tl.constexpr(layout.ACTIONS)
RETURNS = tl.constexpr(layout.RETURNS)
MASKS = tl.constexpr(layout.MASKS)
LISTS = tl.constexpr(layout.LISTS)
LIST_TOKENS = tl.constexpr(layout.LIST_TOKENS)


@triton.jit
def copy_kernel(slots, registers, tables, row_masks, words, TILE: tl.constexpr):
    """One program for each row and TILE words: copies the mask of the row's state to the row's mask.

    slots: int32 [rows], the place of each row's registers
    tables: int64 [TABLES], addresses of the pool's tables; not read for rows without an automaton
    row_masks: int32 [rows, words]
    """
    row, tile = tl.program_id(0), tl.program_id(1)
    own = registers + tl.load(slots + row) * REGISTERS
    state = tl.load(own)
    if state != NO_AUTOMATON:
        number = tl.full((), NO_TOKENS, tl.int32)
        if state >= 0:
            grammar = _grammar(own, tables)
            of_state = tl.load(_state_row(state, grammar, tables) + MASK)
            number = tl.where(of_state == NO_MASK, NO_TOKENS, tl.load(grammar + MASK_0) + of_state)
        word = tile * TILE + tl.arange(0, TILE)
        base = _ints(tables, MASKS) + number.to(tl.int64) * words + word
        tl.store(
            row_masks + row.to(tl.int64) * words + word, tl.load(base, mask=word < words), mask=word < words
        )


@triton.jit
def flip_kernel(slots, registers, tables, row_masks, words, LANES: tl.constexpr):
    """Programs (row, 0) and (row, 1) flip the bits of the tokens in the state's shared list and own list."""
    row = tl.program_id(0)
    own = registers + tl.load(slots + row) * REGISTERS
    state = tl.load(own)
    if state >= 0:
        grammar = _grammar(own, tables)
        column = tl.where(tl.program_id(1) == 0, SHARED, OWN)
        tokens = _list(tl.load(_state_row(state, grammar, tables) + column), grammar, tables)
        list_tokens = _list_tokens(tokens, grammar, tables)
        mask, count = row_masks + row.to(tl.int64) * words, tl.load(tokens + TOKENS)
        for start in range(0, count, LANES):
            lane = start + tl.arange(0, LANES)
            token = tl.load(list_tokens + lane, mask=lane < count, other=0)
            bit = tl.full((LANES,), 1, tl.int32) << (token & 31)
            tl.atomic_xor(mask + (token >> 5), bit, mask=lane < count)


@triton.jit
def decide_kernel(slots, registers, tables, row_masks, words, LANES: tl.constexpr):
    """Several programs for each row: sets or clears the tokens that the row's stack decides."""
    row = tl.program_id(0)
    own = registers + tl.load(slots + row) * REGISTERS
    state = tl.load(own)
    if state >= 0:
        grammar = _grammar(own, tables)
        decided = _list(tl.load(_state_row(state, grammar, tables) + DECIDED), grammar, tables)
        mask, count = row_masks + row.to(tl.int64) * words, tl.load(decided + TOKENS)
        if tl.load(own + DEPTH) > tl.load(decided + SAFE_DEPTH):
            count += tl.load(decided + OPENERS)
        tokens = _list_tokens(decided, grammar, tables)
        level = tl.arange(0, STACK_PLACES)[None, :]
        for start in range(tl.program_id(1) * LANES, count, tl.num_programs(1) * LANES):
            lane = start + tl.arange(0, LANES)
            token = tl.load(tokens + lane, mask=lane < count, other=0)
            after, _, _ = _walk(
                tl.where(lane < count, state, NO_AUTOMATON),
                tl.full((LANES,), 0, tl.int32) + tl.load(own + DEPTH),
                tl.full((LANES, STACK_PLACES), 0, tl.int32) + tl.load(own + STACK + level),
                token,
                tables,
                grammar,
            )
            word, bit = mask + (token >> 5), tl.full((LANES,), 1, tl.int32) << (token & 31)
            tl.atomic_or(word, bit, mask=after >= 0)
            tl.atomic_and(word, ~bit, mask=after == DEAD)


@triton.jit
def ahead_kernel(slots, offsets, drafts, registers, tables, ahead):
    """One program for each row: writes to `ahead`, int32 [rows, REGISTERS], the registers of the row's slot,
    stepped over the drafts before the row."""
    row = tl.program_id(0)
    old, new, lane = registers + tl.load(slots + row) * REGISTERS, ahead + row * REGISTERS, tl.arange(0, 1)
    if tl.load(old) == NO_AUTOMATON:
        tl.store(new, NO_AUTOMATON)
    else:
        place = STACK + tl.arange(0, STACK_PLACES)[None, :]
        state, depth, stack = tl.load(old + lane), tl.load(old + DEPTH + lane), tl.load(old + place)
        grammar = _grammar(old, tables)
        for before in range(row - tl.load(offsets + row), row):
            draft = tl.load(drafts + before) + lane
            state, depth, stack = _walk(state, depth, stack, draft, tables, grammar)
        tl.store(new + lane, state)
        tl.store(new + DEPTH + lane, depth)
        tl.store(new + GRAMMAR, tl.load(old + GRAMMAR))
        tl.store(new + place, stack)


@triton.jit
def keep_ahead(row, slot, ahead, registers):
    """Gives a slot that follows an automaton the registers of a row in `ahead`."""
    old, new = registers + slot * REGISTERS, ahead + row * REGISTERS
    if tl.load(old) != NO_AUTOMATON:
        place = STACK + tl.arange(0, STACK_PLACES)
        tl.store(old, tl.load(new))
        tl.store(old + DEPTH, tl.load(new + DEPTH))
        tl.store(old + place, tl.load(new + place))


@triton.jit
def _grammar(own, tables):
    """The columns of the grammar that a slot's registers name."""
    return _ints(tables, GRAMMARS) + GRAMMAR_COLUMNS * tl.load(own + GRAMMAR)


@triton.jit
def _state_row(state, grammar, tables):
    return _ints(tables, STATES) + STATE_COLUMNS * (tl.load(grammar + STATE_0) + state)


@triton.jit
def _list(number, grammar, tables):
    """The columns of a list of tokens."""
    return _ints(tables, LISTS) + LIST_COLUMNS * (tl.load(grammar + LIST_0) + number)


@triton.jit
def _list_tokens(columns, grammar, tables):
    return _ints(tables, LIST_TOKENS) + tl.load(grammar + TOKEN_0) + tl.load(columns + START)


@triton.jit
def _ints(tables, number):
    return tl.load(tables + number).to(tl.pointer_type(tl.int32))


@triton.jit
def _bytes(tables, number):
    return tl.load(tables + number).to(tl.pointer_type(tl.uint8))


@triton.jit
def advance(row, slot, token, registers, tables, stepped):
    """Returns the state of a slot's automaton after a token. Writes the new registers to a row of `stepped`.

    stepped: int32 [rows, REGISTERS], for `keep_kernel`; its depth is UNCHANGED without an automaton
    """
    old, new, lane = registers + slot * REGISTERS, stepped + row * REGISTERS, tl.arange(0, 1)
    after = tl.load(old)
    if after >= 0:
        place = STACK + tl.arange(0, STACK_PLACES)[None, :]
        state, depth, stack = tl.load(old + lane), tl.load(old + DEPTH + lane), tl.load(old + place)
        state, depth, stack = _walk(state, depth, stack, token + lane, tables, _grammar(old, tables))
        tl.store(new + lane, state)
        tl.store(new + DEPTH + lane, depth)
        tl.store(new + place, stack)
        after = tl.max(state)
    else:
        tl.store(new + DEPTH, UNCHANGED)
    return after


@triton.jit
def keep_kernel(slots, stepped, registers):
    """One program for each row: the slot gets the registers that `advance` wrote.

    It is a launch of its own because all threads of `advance` read the registers, and one would change them.
    """
    row = tl.program_id(0)
    old, new = registers + tl.load(slots + row) * REGISTERS, stepped + row * REGISTERS
    depth = tl.load(new + DEPTH)
    if depth != UNCHANGED:
        place = STACK + tl.arange(0, STACK_PLACES)
        tl.store(old, tl.load(new))
        tl.store(old + DEPTH, depth)
        tl.store(old + place, tl.load(new + place))


@triton.jit
def _walk(state, depth, stack, token, tables, grammar):
    """The state and depth, int32 [lanes], and the stack, int32 [lanes, depths], after each lane's token.

    grammar: the grammar's columns in the pool's table. Lanes with a state below 0 do not change.
    """
    spans, token_bytes = _ints(tables, SPANS), _bytes(tables, TOKEN_BYTES)
    class_of_byte = _bytes(tables, CLASS_MAPS) + 256 * tl.load(grammar + CLASS_MAP)
    states = _ints(tables, STATES) + STATE_COLUMNS * tl.load(grammar + STATE_0)
    entries = _ints(tables, ENTRIES) + ENTRY_COLUMNS * tl.load(grammar + ENTRY_0)
    actions = _ints(tables, ACTIONS) + ACTION_COLUMNS * tl.load(grammar + ACTION_0)
    returns = _ints(tables, RETURNS) + tl.load(grammar + RETURN_0)
    at, end = tl.load(spans + 2 * token), tl.load(spans + 2 * token + 1)
    for offset in range(tl.max(end - at)):
        live = (at + offset < end) & (state >= 0)
        byte = tl.load(token_bytes + at + offset, mask=live, other=0).to(tl.int32)
        kind = tl.load(class_of_byte + byte, mask=live, other=0).to(tl.int32)
        entry = _entry(live, state, kind, states, entries)
        acts = live & (entry < DEAD)
        state = tl.where(live, entry, state)
        if tl.max(acts.to(tl.int32)) > 0:
            state, depth, stack = act(acts, state, depth, stack, actions, returns)
    return state, depth, stack


@triton.jit
def _entry(live, state, kind, states, entries):
    """The transition of each live lane by a byte class: the entry of its state, or of the state's default."""
    row = tl.load(states + STATE_COLUMNS * state + ROW_START, mask=live, other=0)
    place = entries + ENTRY_COLUMNS * (row + kind)
    misses = live & (tl.load(place + OWNER, mask=live, other=0) != state)
    entry = tl.load(place, mask=live & (misses == 0), other=DEAD)
    default = tl.load(states + STATE_COLUMNS * state + DEFAULT, mask=misses, other=0)
    row = tl.load(states + STATE_COLUMNS * default + ROW_START, mask=misses, other=0)
    place = entries + ENTRY_COLUMNS * (row + kind)
    found = misses & (tl.load(place + OWNER, mask=misses, other=0) == default)
    return tl.where(found, tl.load(place, mask=found, other=DEAD), entry)


def write_masks(
    slots: torch.Tensor, registers: torch.Tensor, addresses: torch.Tensor, masks: torch.Tensor
) -> None:
    """Writes the masks of the rows that follow an automaton to `masks`, int32 [rows, words].

    slots, registers, addresses: see `AutomatonRows`. The work takes several launches, because later ones
    change bits in words that other threads wrote.
    """
    number, words = len(slots), masks.shape[1]
    parts = (slots, registers, addresses, masks, words)
    copy_kernel[(number, triton.cdiv(words, TILE))](*parts, TILE=TILE, num_warps=4)
    flip_kernel[(number, 2)](*parts, LANES=LANES, num_warps=8)
    decide_kernel[(number, DECIDERS)](*parts, LANES=LANES, num_warps=8)


def step_ahead(
    slots: torch.Tensor,
    offsets: torch.Tensor,
    drafts: torch.Tensor,
    registers: SlotRegisters,
    addresses: torch.Tensor,
) -> None:
    """Writes the registers of a step's rows to `registers.ahead`. offsets, drafts: see `DraftRows`"""
    parts = slots, offsets, drafts, registers.values, addresses, registers.ahead
    ahead_kernel[(len(slots),)](*parts, num_warps=1)
