"""Processes as /proc shows them. A process that ends meanwhile counts as absent."""

from __future__ import annotations

import contextlib
from pathlib import Path

_GONE = (FileNotFoundError, ProcessLookupError)


def children_of(pid: int) -> set[int]:
    """Every process that `pid` started, including zombies.

    Not from /proc/PID/task/*/children: the kernel may leave out siblings of a child that just ended.
    """
    numbers = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return {number for number in numbers if _stat(number)[1:2] == [str(pid)]}


def descendants_of(pid: int) -> set[int]:
    """`pid`, its children, theirs and so on."""
    return {pid}.union(*(descendants_of(child) for child in children_of(pid)))


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    return _stat(pid)[:1] not in ([], ["Z"], ["X"])


def processor_ticks(pid: int) -> int:
    """The processor time it has used, in units of `SC_CLK_TCK`."""
    return sum(map(int, _stat(pid)[11:13]))


def command_line(pid: int) -> list[str]:
    """Its arguments; none of one that has ended."""
    with contextlib.suppress(*_GONE):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    return []


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty if the process has ended."""
    with contextlib.suppress(*_GONE):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []
