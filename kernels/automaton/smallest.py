"""The smallest pool, to compile and try kernels with."""

import numpy as np
import torch

from ...runtime.automaton_format import ACTION_COLUMNS, DEAD, LIST_COLUMNS, NO_MASK, AutomatonTables
from .pool import AutomatonPool
from .registers import SlotRegisters


def smallest_pool(device: torch.device | str, vocab: int) -> AutomatonPool:
    """A pool of one grammar, whose only state forbids all `vocab` tokens. Slot 0 is in that state; no token
    has bytes."""
    tables = AutomatonTables(
        class_of_byte=np.zeros(256, np.uint8),
        states=np.array([[0, 0, NO_MASK, 0, 0, 0]], np.int32),
        entries=np.array([[DEAD, 0]], np.int32),
        actions=np.zeros((0, ACTION_COLUMNS), np.int32),
        returns=np.zeros(0, np.int32),
        masks=np.zeros((0, -(-vocab // 32)), np.int32),
        lists=np.zeros((1, LIST_COLUMNS), np.int32),
        list_tokens=np.zeros(0, np.int32),
    )
    registers = SlotRegisters(1, vocab, device)
    pool = AutomatonPool(device, registers, np.zeros(vocab + 1, np.int32), np.zeros(1, np.uint8), [])
    pool.load(0, tables)
    pool.enter(0, 0, 0)
    return pool
