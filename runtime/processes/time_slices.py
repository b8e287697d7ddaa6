"""How soon a thread gets a core when it wakes, while other threads compute on all cores.

Linux lets a computing thread finish its time slice of about 3 ms before a thread that wakes gets the core,
unless the slices of that thread are shorter. A token passes through several threads that wake for it and run
for a fraction of a millisecond.
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
_KEEP_POLICY = 8
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""size, policy, flags, niceness, priority, and times in nanoseconds, of which the first is the slice"""


def use_short_slices() -> None:
    """For this thread and those that it starts later. No effect before Linux 6.12 and on other systems."""
    _use_slices(SHORT_NS)


@contextmanager
def short_slices() -> Iterator[None]:
    """For the threads that are started in the context."""
    use_short_slices()
    try:
        yield
    finally:
        _use_slices(DEFAULT)


def _use_slices(nanoseconds: int) -> None:
    number = _SET_ATTRIBUTES.get(platform.machine())
    if sys.platform != "linux" or number is None:
        return
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, 0, _KEEP_POLICY, niceness, 0, nanoseconds, 0, 0)
    ctypes.CDLL(None).syscall(number, 0, attributes, 0)  # if it fails, slices stay as they are
