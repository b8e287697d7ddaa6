"""The registers and masks of slots, at fixed device addresses."""

import torch

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
