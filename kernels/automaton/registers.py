"""The registers and masks of slots, at fixed device addresses."""

import numpy as np
import torch
from numpy.typing import NDArray

from ...runtime.automaton_format import NO_AUTOMATON
from .layout import REGISTERS, STATE


class SlotRegisters:
    """Registers of slots 0 … slots - 1 and of one padding slot, for the padding rows of a graph."""

    def __init__(self, slots: int, vocab: int, device: torch.device | str) -> None:
        self.padding_slot = slots
        self.values = torch.zeros(slots + 1, REGISTERS, dtype=torch.int32, device=device)
        """int32 [slots + 1, REGISTERS]: state, depth, grammar and stack"""
        self.values[:, STATE] = NO_AUTOMATON
        self.masks = torch.zeros(slots, -(-vocab // 32), dtype=torch.int32, device=device)
        """int32 [slots, words]: on CUDA, the mask of each slot"""
        self.followed = np.zeros(slots, np.bool_)
        """bool [slots], on the host: whether a slot follows an automaton"""

    def mask_index(self, slots: NDArray[np.int32]) -> NDArray[np.int32]:
        """int32 [rows]: where the masks of rows with these slots are in `masks`; -1 without an automaton."""
        return np.where(self.followed[slots], slots, np.int32(-1))
