"""Memory as the operating system counts and gives it."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

POPULATE_WRITE = 23  # Linux's madvise, since 5.14: allocates a span, without changing what it has already
_CGROUP = Path("/sys/fs/cgroup")


class Span(NamedTuple):
    address: int
    bytes: int


def populate(span: Span) -> bool:
    """Asks the system for the memory of a span. Returns False if the system can't give it."""
    size = os.sysconf("SC_PAGE_SIZE")
    begin, end = -(-span.address // size) * size, (span.address + span.bytes) // size * size
    if begin >= end:
        return True
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return bool(madvise(begin, end - begin, POPULATE_WRITE) == 0)


def give_back_freed_memory() -> None:
    """Returns to the system what this process has freed but the C library keeps. No effect without glibc."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def free_host_memory() -> int:
    """Bytes that can be allocated without swapping, within the container's limit."""
    limits = [_available(), _cgroup_free()]
    return min(limit for limit in limits if limit is not None)


def _available() -> int:
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _cgroup_free() -> int | None:
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text())
        return max(0, limit - used + _cached_files())
    except (OSError, ValueError):  # no cgroup of version 2, or no limit ("max")
        return None


def _cached_files() -> int:
    """Bytes of files in memory, which count as used but which the system frees when it needs memory."""
    lines = (_CGROUP / "memory.stat").read_text().splitlines()
    counts = dict(line.split(maxsplit=1) for line in lines)
    return int(counts["active_file"]) + int(counts["inactive_file"])
