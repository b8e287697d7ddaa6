"""Pools of hand-made and random automata over one small vocabulary, and rows in them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from arbora.kernels.automaton import AutomatonPool, SlotRegisters
from arbora.kernels.automaton import cuda as automaton_triton
from arbora.kernels.automaton.layout import DEPTH, STACK, STATE
from arbora.kernels.sampling import AutomatonRows, TokenMask
from arbora.kernels.sampling.reference import unpack_bits
from arbora.runtime.automaton_format import AutomatonTables
from stack_automata import EOS, MODEL_VOCAB, VOCABULARY, Configuration

SLOTS = 24
CPU = torch.device("cpu")
automaton_triton.LANES, automaton_triton.TILE = 32, 2  # several rounds for few tokens and words


def empty_pool(device: torch.device = CPU) -> AutomatonPool:
    spelled = [*VOCABULARY, *[b""] * (MODEL_VOCAB - len(VOCABULARY))]
    offsets = np.cumsum([0, *map(len, spelled)], dtype=np.int32)
    registers = SlotRegisters(SLOTS, MODEL_VOCAB, device)
    return AutomatonPool(device, registers, offsets, np.frombuffer(b"".join(spelled), np.uint8), [EOS])


def pool_of(*grammars: AutomatonTables, device: torch.device = CPU) -> AutomatonPool:
    pool = empty_pool(device)
    for number, tables in enumerate(grammars):
        pool.load(number, tables)
    return pool


def entered(pool: AutomatonPool, placed: Sequence[tuple[int, Configuration]]) -> AutomatonRows:
    """Rows of (grammar, configuration), in slots that are neither sorted nor consecutive."""
    slots = np.random.default_rng(len(placed)).permutation(SLOTS)[: len(placed)].astype(np.int32)
    for slot, (number, at) in zip(slots.tolist(), placed, strict=True):
        pool.enter(slot, number, at.state, at.stack)
    return pool.rows(slots)


def triton_mask(pool: AutomatonPool, rows: AutomatonRows) -> TokenMask:
    masks = pool._registers.masks
    automaton_triton.write_masks(rows.slots, rows.registers, rows.addresses, masks)
    return TokenMask(rows.mask_index, pool._registers.masks)


def allowed(mask: TokenMask, row: int) -> list[int]:
    bits = unpack_bits(mask.bits[int(mask.index[row])], MODEL_VOCAB)
    return bits.nonzero().flatten().tolist()


def configurations(rows: AutomatonRows) -> list[Configuration]:
    """The rows' states and stacks."""
    found = []
    for own in rows.registers[rows.slots.long()].cpu().numpy():
        state, stack = int(own[STATE]), own[STACK : STACK + own[DEPTH]]
        found.append(Configuration(state, tuple(stack.tolist())) if state >= 0 else Configuration(-1))
    return found


def int32(values: Sequence[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)
