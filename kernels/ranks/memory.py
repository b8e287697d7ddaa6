"""The memory that the ranks of a model share."""

from __future__ import annotations

import mmap
import os

import numpy as np

from ..common.teams import LINE
from ..common.waiting import FUTEX, find_number

SLOT_BYTES = 8 << 20
"""size of a rank's slot in each of the two halves; the part of it that is never written takes no memory"""
ARRIVALS, SLEEPING, EXCHANGES = 0, LINE, 2 * LINE
"""Where the counters are, int64, each in a cache line of its own. ARRIVALS: the number of parts that ranks
have written since the start. SLEEPING: the number of threads that sleep until another rank has written its
part. From EXCHANGES on, one for each rank: the number of exchanges that it has begun."""


class RankMemory:
    """The counters, and two halves with a slot for each rank.

    Exchanges use the halves in turn. So a rank may write its part of the next exchange while others read that
    of the last one: they must have read it before they write theirs.
    """

    def __init__(self, descriptor: int, rank: int, ranks: int) -> None:
        """descriptor: the descriptor of a file, empty at first, which all ranks map into their memory"""
        self.rank, self.ranks = rank, ranks
        counters = -(-8 * (EXCHANGES + LINE * ranks) // mmap.PAGESIZE) * mmap.PAGESIZE
        size = counters + 2 * ranks * SLOT_BYTES
        os.ftruncate(descriptor, size)
        self._bytes = np.frombuffer(mmap.mmap(descriptor, size), np.uint8)
        begin = self._bytes.ctypes.data
        self.arguments = (begin, begin + counters, rank, ranks, find_number(FUTEX))
        """of kernels: the addresses of the counters and of the halves, the rank and the number of ranks, and
        the number of the system call"""
