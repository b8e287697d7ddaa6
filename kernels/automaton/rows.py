"""The rows of a step that follow automata, their masks, and the registers of their slots."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ...runtime.automaton_format import NO_AUTOMATON
from .layout import REGISTERS, STATE

NO_MASK_HERE = -1


@dataclass(frozen=True, slots=True)
class TokenMask:
    """Packed bits of allowed tokens: bit i % 32 of word i // 32 stands for token i."""

    index: torch.Tensor
    """int32 [rows]: the row's mask in bits, -1 for none"""
    bits: torch.Tensor
    """int32 [masks, ceil(vocab / 32)]: the bits of each mask"""


class PoolTables(NamedTuple):
    """The tables of all loaded grammars, one after the other; `automaton_format` describes their columns."""

    spans: NDArray[np.int32]
    """[vocab, 2]: the start and end of each token's bytes"""
    token_bytes: NDArray[np.uint8]
    grammars: NDArray[np.int32]
    """int32 [grammars, GRAMMAR_COLUMNS]: where each grammar's part of each table begins"""
    class_maps: NDArray[np.uint8]
    """uint8 [grammars, 256]: the class of each byte"""
    states: NDArray[np.int32]
    entries: NDArray[np.int32]
    actions: NDArray[np.int32]
    returns: NDArray[np.int32]
    masks: NDArray[np.int32]
    lists: NDArray[np.int32]
    list_tokens: NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class AutomatonRows:
    """Rows with byte automata: each row's registers are stepped over its sampled token."""

    slots: torch.Tensor
    """int32 [rows], distinct: the place of each row's registers in `registers`"""
    registers: torch.Tensor
    """int32 [slots, `layout.REGISTERS`]: state, depth, grammar and stack of each slot, or in steps with
    drafts those of each row (`SlotRegisters.ahead`)"""
    tables: PoolTables | None
    """the tables on the host; None on CUDA"""
    addresses: torch.Tensor
    """int64 [`layout.TABLES`]: addresses of the tables, which each CUDA launch reads"""
    mask_index: torch.Tensor
    """int32 [rows]: index of each row's mask in `SlotRegisters.masks`, -1 for rows without an automaton"""


class SlotRegisters:
    """Registers of slots 0 … slots - 1 and of one padding slot, for the padding rows of a graph."""

    def __init__(self, slots: int, vocab: int, device: torch.device | str, drafts: int = 0) -> None:
        """drafts: how many drafts a step may have in all; 0: none"""
        self.padding_slot, rows = slots, slots + drafts
        self.values = torch.zeros(slots + 1, REGISTERS, dtype=torch.int32, device=device)
        """int32 [slots + 1, REGISTERS]: state, depth, grammar and stack of each slot"""
        self.values[:, STATE] = NO_AUTOMATON
        self.masks = torch.zeros(rows, -(-vocab // 32), dtype=torch.int32, device=device)
        """on CUDA: int32 [rows, words], the mask of each row of a step that samples"""
        self.ahead: torch.Tensor | None = None
        """int32 [rows + 1, REGISTERS], those of each row of a step, after the drafts before it, and of a
        padding row; None if no slot has drafts"""
        self.row_numbers = torch.arange(rows, dtype=torch.int32, device=device)
        if drafts:
            self.ahead = torch.full((rows + 1, REGISTERS), NO_AUTOMATON, dtype=torch.int32, device=device)
        self._follows = np.zeros(slots, np.bool_)
        self._numbers = np.arange(rows, dtype=np.int32)

    def follow(self, slot: int, *, follows: bool) -> None:
        """Notes whether a slot follows an automaton."""
        self._follows[slot] = follows

    def mask_index(self, slots: NDArray[np.int32]) -> NDArray[np.int32]:
        """int32 [rows]: where the masks of rows with these slots are in `masks`; -1 without an automaton."""
        return np.where(self._follows[slots], self._numbers[: len(slots)], np.int32(NO_MASK_HERE))

    def follows(self, slot: int) -> bool:
        return bool(self._follows[slot])

    def any_follows(self, slots: NDArray[np.int32]) -> bool:
        """Whether any of the slots follows an automaton."""
        return bool(self._follows[slots].any())
