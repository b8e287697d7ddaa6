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
"""the shortest that Linux allows"""
DEFAULT = 0
_SET_ATTRIBUTES = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
"""number of Linux's system call sched_setattr by processor"""
_RESET_ON_FORK = 1
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""size, policy, flags, niceness, priority, and times in nanoseconds, of which the first is the slice"""


def use_short_slices() -> None:
    """For this thread, not for the threads and processes that it starts later: these may compute for long.

    No effect before Linux 6.12 and on other systems.
    """
    _use_slices(SHORT_NS, _RESET_ON_FORK)


@contextmanager
def short_slices() -> Iterator[None]:
    """For the threads that this thread starts in the context, such as those of sockets."""
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
