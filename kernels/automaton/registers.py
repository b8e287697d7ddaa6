"""The registers and masks of slots, at fixed device addresses."""

import numpy as np
import torch
from numpy.typing import NDArray

from ...runtime.automaton_format import NO_AUTOMATON
from .layout import REGISTERS, STATE

NO_MASK_HERE = -1


class SlotRegisters:
    """Registers of slots 0 … slots - 1 and of one padding slot, for the padding rows of a graph."""

    def __init__(self, slots: int, vocab: int, device: torch.device | str) -> None:
        self.padding_slot = slots
        self.values = torch.zeros(slots + 1, REGISTERS, dtype=torch.int32, device=device)
        """int32 [slots + 1, REGISTERS]: state, depth, grammar and stack"""
        self.values[:, STATE] = NO_AUTOMATON
        self.masks = torch.zeros(slots, -(-vocab // 32), dtype=torch.int32, device=device)
        """int32 [slots, words]: on CUDA, the mask of each slot"""
        self._mask_index = np.full(slots, NO_MASK_HERE, np.int32)

    def follow(self, slot: int, *, follows: bool) -> None:
        """Notes whether a slot follows an automaton."""
        self._mask_index[slot] = slot if follows else NO_MASK_HERE

    def mask_index(self, slots: NDArray[np.int32]) -> NDArray[np.int32]:
        """int32 [rows]: where the masks of rows with these slots are in `masks`; -1 without an automaton."""
        return self._mask_index[slots]

    def follows(self, slot: int) -> bool:
        return bool(self._mask_index[slot] != NO_MASK_HERE)

    def any_follows(self, slots: NDArray[np.int32]) -> bool:
        """Whether any of the slots follows an automaton."""
        return bool((self._mask_index[slots] != NO_MASK_HERE).any())
