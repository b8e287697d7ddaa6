# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Stepping of pooled automata on CUDA.

Lanes are stepped together, each with a stack of its own in registers.
"""

import torch
import triton
import triton.language as tl

from ..sampling.batch import AutomatonRows
from . import layout
from .act_cuda import act

LANES = 256
TILE = 1024
DEAD = tl.constexpr(layout.DEAD)
NO_AUTOMATON = tl.constexpr(layout.NO_AUTOMATON)
STACK_PLACES = tl.constexpr(layout.STACK_PLACES)
REGISTERS = tl.constexpr(layout.REGISTERS)
STATE_COLUMNS = tl.constexpr(layout.STATE_COLUMNS)
FIRST_TRANSITION = tl.constexpr(layout.FIRST_TRANSITION)
CLASS_MAP = tl.constexpr(layout.CLASS_MAP)
MASK = tl.constexpr(layout.MASK)
SHARED_START = tl.constexpr(layout.SHARED_START)
SHARED_COUNT = tl.constexpr(layout.SHARED_COUNT)
OWN_START = tl.constexpr(layout.OWN_START)
OWN_COUNT = tl.constexpr(layout.OWN_COUNT)
DECIDED_START = tl.constexpr(layout.DECIDED_START)
DECIDED_COUNT = tl.constexpr(layout.DECIDED_COUNT)
OPENER_COUNT = tl.constexpr(layout.OPENER_COUNT)
ROOMY_DEPTH = tl.constexpr(layout.ROOMY_DEPTH)
DEPTH = tl.constexpr(layout.DEPTH)
STACK = tl.constexpr(layout.STACK)


@triton.jit
def mask_kernel(
    slots,
    registers,
    spans,
    token_bytes,
    state_rows,
    class_maps,
    transitions,
    actions,
    returns,
    lists,
    masks,
    words,
    own_masks,
    index,
    LANES: tl.constexpr,
    TILE: tl.constexpr,
):
    """One program for each row: the place of its mask in masks [n, words], made where lists have a say."""
    row = tl.program_id(0)
    slot = tl.load(slots + row)
    own = registers + slot * REGISTERS
    state = tl.load(own)
    state_row = state_rows + STATE_COLUMNS * tl.maximum(state, 0)
    chosen = tl.load(state_row + MASK)
    shared, differing = tl.load(state_row + SHARED_COUNT), tl.load(state_row + OWN_COUNT)
    decided = tl.load(state_row + DECIDED_COUNT)
    if tl.load(own + DEPTH) > tl.load(state_row + ROOMY_DEPTH):
        decided += tl.load(state_row + OPENER_COUNT)
    if (state >= 0) & (shared + differing + decided > 0):
        base, chosen = masks + chosen.to(tl.int64) * words, own_masks + slot
        mask = masks + chosen.to(tl.int64) * words
        for start in range(0, words, TILE):
            word = start + tl.arange(0, TILE)
            tl.store(mask + word, tl.load(base + word, mask=word < words), mask=word < words)
        tl.debug_barrier()  # bits are changed by other threads than those that copied them
        _flip(mask, lists + tl.load(state_row + SHARED_START), shared, LANES)
        _flip(mask, lists + tl.load(state_row + OWN_START), differing, LANES)
        tl.debug_barrier()  # and set by others than those that flipped them
        first = tl.load(state_row + DECIDED_START)
        level = tl.arange(0, STACK_PLACES)[None, :]
        for start in range(0, decided, LANES):
            lane = start + tl.arange(0, LANES)
            token = tl.load(lists + first + lane, mask=lane < decided, other=0)
            after, _, _ = _walk(
                tl.where(lane < decided, state, NO_AUTOMATON),
                tl.full((LANES,), 0, tl.int32) + tl.load(own + DEPTH),
                tl.full((LANES, STACK_PLACES), 0, tl.int32) + tl.load(own + STACK + level),
                token,
                spans,
                token_bytes,
                state_rows,
                class_maps + 256 * tl.load(state_row + CLASS_MAP),
                transitions,
                actions,
                returns,
            )
            word, bit = mask + (token >> 5), tl.full((LANES,), 1, tl.int32) << (token & 31)
            tl.atomic_or(word, bit, mask=after > DEAD)
            tl.atomic_and(word, ~bit, mask=after == DEAD)
    tl.store(index + row, tl.where(state < 0, -1, chosen))


@triton.jit
def _flip(mask, tokens, count, LANES: tl.constexpr):
    for start in range(0, count, LANES):
        lane = start + tl.arange(0, LANES)
        token = tl.load(tokens + lane, mask=lane < count, other=0)
        bit = tl.full((LANES,), 1, tl.int32) << (token & 31)
        tl.atomic_xor(mask + (token >> 5), bit, mask=lane < count)


@triton.jit
def advance(
    slot,
    token,
    registers,
    spans,
    token_bytes,
    state_rows,
    class_maps,
    transitions,
    actions,
    returns,
):
    """Move a slot's registers over one token; return the state after it."""
    lane = tl.arange(0, 1)
    own = registers + slot * REGISTERS + lane
    place = registers + slot * REGISTERS + STACK + tl.arange(0, STACK_PLACES)[None, :]
    state = tl.load(own)
    class_map = tl.load(state_rows + STATE_COLUMNS * tl.maximum(state, 0) + CLASS_MAP)
    state, depth, stack = _walk(
        state,
        tl.load(own + DEPTH),
        tl.load(place),
        token + lane,
        spans,
        token_bytes,
        state_rows,
        class_maps + 256 * class_map,
        transitions,
        actions,
        returns,
    )
    tl.debug_barrier()  # every warp has read the registers that one of them now changes
    tl.store(own, state)
    tl.store(own + DEPTH, depth)
    tl.store(place, stack)
    return tl.max(state)


@triton.jit
def _walk(
    state,
    depth,
    stack,
    token,
    spans,
    token_bytes,
    state_rows,
    class_of_byte,
    transitions,
    actions,
    returns,
):
    """State and depth, int32 [lanes], and stack, int32 [lanes, depths], after each lane's token."""
    at, end = tl.load(spans + 2 * token), tl.load(spans + 2 * token + 1)
    for offset in range(tl.max(end - at)):
        live = (at + offset < end) & (state > DEAD)
        byte = tl.load(token_bytes + at + offset, mask=live, other=0).to(tl.int32)
        kind = tl.load(class_of_byte + byte, mask=live, other=0).to(tl.int32)
        first = tl.load(state_rows + STATE_COLUMNS * state + FIRST_TRANSITION, mask=live, other=0)
        entry = tl.load(transitions + first + kind, mask=live, other=0)
        acts = live & (entry < 0)
        state = tl.where(live, entry, state)
        if tl.max(acts.to(tl.int32)) > 0:
            state, depth, stack = act(acts, state, depth, stack, actions, returns)
    return state, depth, stack


def mask(rows: AutomatonRows, lists: torch.Tensor, masks: torch.Tensor, own_masks: int) -> torch.Tensor:
    """See `AutomatonPool.mask`; the rows' indices into masks, int32 [rows]."""
    index = torch.empty_like(rows.slots)
    parts = (rows.slots, rows.registers, *rows.tables, lists, masks, masks.shape[1], own_masks, index)
    mask_kernel[(len(index),)](*parts, LANES=LANES, TILE=TILE, num_warps=8)
    return index
