"""What the automata of slots have on the device at places that never change."""

import torch

from .layout import NO_AUTOMATON, REGISTERS, STATE


class SlotRegisters:
    """Of slots 0 … slots - 1, and of nobody: a slot more, in which rows that stand for none may be."""

    def __init__(self, slots: int, vocab: int, device: torch.device | str) -> None:
        self.nobody = slots
        self.values = torch.zeros(slots + 1, REGISTERS, dtype=torch.int32, device=device)
        """int32 [slots + 1, REGISTERS]: state, depth and stack"""
        self.values[:, STATE] = NO_AUTOMATON
        self.masks = torch.zeros(slots, -(-vocab // 32), dtype=torch.int32, device=device)
        """int32 [slots, words]: on CUDA, what each may sample now"""
