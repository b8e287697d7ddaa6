"""Memory as the operating system counts and gives it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from .cgroups import find_cgroups

NO_LIMIT = 1 << 62
"""Version 1 of control groups says that there is no limit by a larger one."""
SHARERS_VARIABLE = "ARBORA_MEMORY_SHARERS"
"""environment variable with the number of processes that divide the free memory, for one of several replicas
whose KV cache takes what is free"""
POPULATE_WRITE = 23  # Linux's madvise, since 5.14: allocates a span, without changing what it has already
_FILES_OF_VERSIONS = (
    ("memory.max", "memory.current", ""),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
)
"""of control groups of version 2 and 1: the limit, the use, and what precedes the names in memory.stat"""


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
    """Bytes that this process can allocate without swapping, within the container's limit."""
    free = min([_available(), *(limit.free for limit in _find_limits())])
    return free // int(os.environ.get(SHARERS_VARIABLE, 1))


def memory_limit() -> int | None:
    """The smallest limit of this process's control group and its parents, in bytes; None: there is none."""
    return min((limit.bytes for limit in _find_limits()), default=None)


class _Limit(NamedTuple):
    bytes: int
    free: int


def _available() -> int:
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _find_limits() -> Iterator[_Limit]:
    for group in find_cgroups("memory"):
        for limit, used, prefix in _FILES_OF_VERSIONS:
            with suppress(OSError, ValueError):  # no such file, or no limit ("max")
                size = int((group / limit).read_text())
                free = size - int((group / used).read_text()) + _cached_files(group, prefix)
                if size < NO_LIMIT:
                    yield _Limit(size, max(0, free))


def _cached_files(group: Path, prefix: str) -> int:
    """Bytes of files in memory, which count as used but which the system frees when it needs memory."""
    lines = (group / "memory.stat").read_text().splitlines()
    counts = dict(line.split(maxsplit=1) for line in lines)
    return int(counts[f"{prefix}active_file"]) + int(counts[f"{prefix}inactive_file"])
