"""The rows of a step that follow automata, and their masks."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TokenMask:
    """Packed bits of allowed tokens: bit i % 32 of word i // 32 stands for token i."""

    index: torch.Tensor
    """int32 [rows]: the row's mask in bits, -1 for none"""
    bits: torch.Tensor
    """int32 [masks, ceil(vocab / 32)]"""


class PoolTables(NamedTuple):
    """The tables of all loaded grammars, one after the other; `automaton_format` describes their columns."""

    spans: NDArray[np.int32]
    """[vocab, 2]: the start and end of each token's bytes"""
    token_bytes: NDArray[np.uint8]
    grammars: NDArray[np.int32]
    """[grammars, GRAMMAR_COLUMNS]"""
    class_maps: NDArray[np.uint8]
    """[grammars, 256]"""
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
    """int32 [rows], distinct"""
    registers: torch.Tensor
    """int32 [slots, `layout.REGISTERS`]: state, depth, grammar and stack of each slot"""
    tables: PoolTables | None
    """on a CPU"""
    addresses: torch.Tensor
    """int64 [`layout.TABLES`], addresses of the tables, which each CUDA launch reads"""
    mask_index: torch.Tensor
    """int32 [rows]: see `SlotRegisters.mask_index`"""
