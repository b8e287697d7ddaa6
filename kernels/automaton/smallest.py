"""The smallest pool, to compile and try kernels with."""

import numpy as np
import torch

from .pool import AutomatonPool
from .registers import SlotRegisters
from .tables import Tables


def smallest_pool(device: torch.device | str, vocab: int) -> AutomatonPool:
    """A pool of one grammar whose only state forbids all `vocab` tokens, none of which has bytes; slot 0 is
    in it."""
    one = np.zeros(1, np.int32)
    tables = Tables(
        class_of_byte=np.zeros(256, np.uint8),
        row_starts=one,
        default_state=one,
        entries=one,
        owners=one,
        mask_of_state=one,
        masks=np.zeros((1, -(-vocab // 32)), np.int32),
        lists_of_state=np.zeros((1, 3), np.int32),
        list_offsets=np.zeros(2, np.int32),
        list_tokens=np.zeros(0, np.int32),
        opener_counts=one,
    )
    registers = SlotRegisters(1, vocab, device)
    pool = AutomatonPool(device, registers, np.zeros(vocab + 1, np.int32), np.zeros(1, np.uint8), [])
    pool.load(0, tables)
    pool.enter(0, 0, 0)
    return pool
