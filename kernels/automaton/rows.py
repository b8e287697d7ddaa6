"""The rows of a step that follow automata, and their masks."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class TokenMask:
    """Packed bits of allowed tokens: bit i % 32 of word i // 32 stands for token i."""

    index: torch.Tensor
    """int32 [rows]: the row's mask in bits, -1 for none"""
    bits: torch.Tensor
    """int32 [masks, ceil(vocab / 32)]"""


@dataclass(frozen=True, slots=True)
class AutomatonRows:
    """Rows with byte automata: each row's registers are stepped over its sampled token."""

    slots: torch.Tensor
    """int32 [rows], distinct"""
    registers: torch.Tensor
    """int32 [slots, `layout.REGISTERS`]: state, depth and stack of each slot"""
    tables: tuple[torch.Tensor, ...]
    """see `AutomatonPool.tables`; for the CPU"""
    addresses: torch.Tensor
    """int64 [`layout.TABLES`], addresses of the tables; for CUDA, read anew by each launch"""
