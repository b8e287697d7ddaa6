# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Steps pooled automata on CUDA. Lanes step together; each has its own stack in registers."""

import torch
import triton
import triton.language as tl

from . import layout
from .act_cuda import act
from .rows import AutomatonRows

LANES = 256
TILE = 1024
DEAD = tl.constexpr(layout.DEAD)
NO_AUTOMATON = tl.constexpr(layout.NO_AUTOMATON)
STACK_PLACES = tl.constexpr(layout.STACK_PLACES)
REGISTERS = tl.constexpr(layout.REGISTERS)
STATE_COLUMNS = tl.constexpr(layout.STATE_COLUMNS)
ROW = tl.constexpr(layout.ROW)
DEFAULT = tl.constexpr(layout.DEFAULT)
CLASS_MAP = tl.constexpr(layout.CLASS_MAP)
MASK = tl.constexpr(layout.MASK)
SHARED = tl.constexpr(layout.SHARED)
OWN = tl.constexpr(layout.OWN)
DECIDED = tl.constexpr(layout.DECIDED)
LIST_COLUMNS = tl.constexpr(layout.LIST_COLUMNS)
START = tl.constexpr(layout.START)
TOKENS = tl.constexpr(layout.TOKENS)
OPENERS = tl.constexpr(layout.OPENERS)
ROOMY_DEPTH = tl.constexpr(layout.ROOMY_DEPTH)
DEPTH = tl.constexpr(layout.DEPTH)
STACK = tl.constexpr(layout.STACK)
SPANS = tl.constexpr(layout.SPANS)
TOKEN_BYTES = tl.constexpr(layout.TOKEN_BYTES)
STATE_ROWS = tl.constexpr(layout.STATE_ROWS)
CLASS_MAPS = tl.constexpr(layout.CLASS_MAPS)
ENTRIES = tl.constexpr(layout.ENTRIES)
ACTIONS = tl.constexpr(layout.ACTIONS)
RETURNS = tl.constexpr(layout.RETURNS)
LISTS = tl.constexpr(layout.LISTS)
LIST_TOKENS = tl.constexpr(layout.LIST_TOKENS)
MASKS = tl.constexpr(layout.MASKS)


@triton.jit
def mask_kernel(slots, registers, tables, row_masks, words, index, LANES: tl.constexpr, TILE: tl.constexpr):
    """One program for each row: writes the row's mask into its slot's row of row_masks [slots, words].

    tables: int64 [TABLES], addresses; not read for rows without an automaton
    """
    row = tl.program_id(0)
    slot = tl.load(slots + row)
    own = registers + slot * REGISTERS
    state = tl.load(own)
    if state >= 0:
        state_rows, lists = _ints(tables, STATE_ROWS), _ints(tables, LISTS)
        list_tokens = _ints(tables, LIST_TOKENS)
        state_row = state_rows + STATE_COLUMNS * state
        decided = lists + LIST_COLUMNS * tl.load(state_row + DECIDED)
        count = tl.load(decided + TOKENS)
        if tl.load(own + DEPTH) > tl.load(decided + ROOMY_DEPTH):
            count += tl.load(decided + OPENERS)
        base = _ints(tables, MASKS) + tl.load(state_row + MASK).to(tl.int64) * words
        mask = row_masks + slot.to(tl.int64) * words
        for start in range(0, words, TILE):
            word = start + tl.arange(0, TILE)
            tl.store(mask + word, tl.load(base + word, mask=word < words), mask=word < words)
        tl.debug_barrier()  # other threads flip bits than copied them
        _flip(mask, list_tokens, lists + LIST_COLUMNS * tl.load(state_row + SHARED), LANES)
        _flip(mask, list_tokens, lists + LIST_COLUMNS * tl.load(state_row + OWN), LANES)
        tl.debug_barrier()  # other threads set bits than flipped them
        tokens = list_tokens + tl.load(decided + START)
        level = tl.arange(0, STACK_PLACES)[None, :]
        for start in range(0, count, LANES):
            lane = start + tl.arange(0, LANES)
            token = tl.load(tokens + lane, mask=lane < count, other=0)
            after, _, _ = _walk(
                tl.where(lane < count, state, NO_AUTOMATON),
                tl.full((LANES,), 0, tl.int32) + tl.load(own + DEPTH),
                tl.full((LANES, STACK_PLACES), 0, tl.int32) + tl.load(own + STACK + level),
                token,
                tables,
                tl.load(state_row + CLASS_MAP),
            )
            word, bit = mask + (token >> 5), tl.full((LANES,), 1, tl.int32) << (token & 31)
            tl.atomic_or(word, bit, mask=after > DEAD)
            tl.atomic_and(word, ~bit, mask=after == DEAD)
    tl.store(index + row, tl.where(state < 0, -1, slot))


@triton.jit
def _ints(tables, number):
    return tl.load(tables + number).to(tl.pointer_type(tl.int32))


@triton.jit
def _bytes(tables, number):
    return tl.load(tables + number).to(tl.pointer_type(tl.uint8))


@triton.jit
def _flip(mask, list_tokens, tokens, LANES: tl.constexpr):
    """Flips the bits of a list's tokens."""
    first, count = tl.load(tokens + START), tl.load(tokens + TOKENS)
    for start in range(0, count, LANES):
        lane = start + tl.arange(0, LANES)
        token = tl.load(list_tokens + first + lane, mask=lane < count, other=0)
        bit = tl.full((LANES,), 1, tl.int32) << (token & 31)
        tl.atomic_xor(mask + (token >> 5), bit, mask=lane < count)


@triton.jit
def advance(slot, token, registers, tables):
    """Step a slot's registers over one token and return the new state."""
    after = tl.load(registers + slot * REGISTERS)
    if after >= 0:
        lane = tl.arange(0, 1)
        own = registers + slot * REGISTERS + lane
        place = registers + slot * REGISTERS + STACK + tl.arange(0, STACK_PLACES)[None, :]
        state = tl.load(own)
        class_map = tl.load(_ints(tables, STATE_ROWS) + STATE_COLUMNS * after + CLASS_MAP)
        depth, stack = tl.load(own + DEPTH), tl.load(place)
        state, depth, stack = _walk(state, depth, stack, token + lane, tables, class_map)
        tl.debug_barrier()  # wait until every warp has read the registers, as one warp now changes them
        tl.store(own, state)
        tl.store(own + DEPTH, depth)
        tl.store(place, stack)
        after = tl.max(state)
    return after


@triton.jit
def _walk(state, depth, stack, token, tables, class_map):
    """The state and depth, int32 [lanes], and the stack, int32 [lanes, depths], after each lane's token."""
    spans, token_bytes = _ints(tables, SPANS), _bytes(tables, TOKEN_BYTES)
    class_of_byte = _bytes(tables, CLASS_MAPS) + 256 * class_map
    state_rows, entries = _ints(tables, STATE_ROWS), _ints(tables, ENTRIES)
    actions, returns = _ints(tables, ACTIONS), _ints(tables, RETURNS)
    at, end = tl.load(spans + 2 * token), tl.load(spans + 2 * token + 1)
    for offset in range(tl.max(end - at)):
        live = (at + offset < end) & (state > DEAD)
        byte = tl.load(token_bytes + at + offset, mask=live, other=0).to(tl.int32)
        kind = tl.load(class_of_byte + byte, mask=live, other=0).to(tl.int32)
        entry = _entry(live, state, kind, state_rows, entries)
        acts = live & (entry < 0)
        state = tl.where(live, entry, state)
        if tl.max(acts.to(tl.int32)) > 0:
            state, depth, stack = act(acts, state, depth, stack, actions, returns)
    return state, depth, stack


@triton.jit
def _entry(live, state, kind, state_rows, entries):
    """The transition of each live lane by a byte class: the entry of its state, or of the state's default."""
    place = entries + 2 * (tl.load(state_rows + STATE_COLUMNS * state + ROW, mask=live, other=0) + kind)
    misses = live & (tl.load(place + 1, mask=live, other=0) != state)
    entry = tl.load(place, mask=live & (misses == 0), other=DEAD)
    default = tl.load(state_rows + STATE_COLUMNS * state + DEFAULT, mask=misses, other=0)
    place = entries + 2 * (tl.load(state_rows + STATE_COLUMNS * default + ROW, mask=misses, other=0) + kind)
    found = misses & (tl.load(place + 1, mask=misses, other=0) == default)
    return tl.where(found, tl.load(place, mask=found, other=DEAD), entry)


def mask(rows: AutomatonRows, row_masks: torch.Tensor) -> torch.Tensor:
    """Writes the rows' masks into row_masks, int32 [slots, words]. Returns their indices, int32 [rows]."""
    index = torch.empty_like(rows.slots)
    words = row_masks.shape[1]
    parts = (rows.slots, rows.registers, rows.addresses, row_masks, words, index)
    mask_kernel[(len(index),)](*parts, LANES=LANES, TILE=TILE, num_warps=8)
    return index
