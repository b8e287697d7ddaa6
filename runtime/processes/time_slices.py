"""How soon a thread gets a core when it wakes, while other threads compute on all cores.

A thread that wakes often waits some milliseconds, until the time slice of the computing thread ends, unless
its own slices are shorter. A token passes through several threads that wake for it and run for a fraction of
a millisecond, so these have the shortest slices. Their share of a core stays the same.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager

SHORT_NS = 100_000
"""length of a time slice in nanoseconds, the shortest that Linux allows"""
DEFAULT = 0
"""length of a time slice that Linux chooses itself"""
_SET_ATTRIBUTES = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
"""The number of the system call `sched_setattr` on each kind of processor."""
_RESET_ON_FORK = 1
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""The fields of `struct sched_attr`: its size, the policy, flags, the niceness, a priority, and three times
in nanoseconds. The first time is the length of the thread's slices. The priority and the other two times are
for real-time threads."""


def use_short_slices() -> None:
    """Gives this thread short slices. The threads and processes that it starts later have normal ones,
    because they may compute for long.

    Versions of Linux before 6.12 ignore it, and other systems are not asked.
    """
    _use_slices(SHORT_NS, _RESET_ON_FORK)


@contextmanager
def short_slices() -> Iterator[None]:
    """Gives short slices to the threads that are started in the context. Afterwards the calling thread has
    normal ones."""
    _use_slices(SHORT_NS)
    try:
        yield
    finally:
        _use_slices(DEFAULT)


def _use_slices(nanoseconds: int, flags: int = 0) -> None:
    number = _SET_ATTRIBUTES.get(platform.machine())
    if sys.platform != "linux" or number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, flags, niceness, 0, nanoseconds, 0, 0)
    ctypes.CDLL(None).syscall(number, 0, attributes, 0)  # if it fails, slices stay as they are
