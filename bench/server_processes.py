"""Memory, descriptors and processor time of a server's processes, read from /proc."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

Figures = dict[str, dict[str, int]]
"""`mb` of memory and open `descriptors` by role"""


def processes(pid: int | None) -> Figures:
    """Of `arbora serve` with that process id and of its children; nothing without one."""
    found = {}
    for each in _family(pid) if pid is not None else ():
        status = Path(f"/proc/{each}/status").read_text()
        memory = int(status.split("VmRSS:")[1].split()[0]) // 1024 if "VmRSS:" in status else 0
        found[_role(each)] = {"mb": memory, "descriptors": len(os.listdir(f"/proc/{each}/fd"))}
    return found


def cpu_seconds(pid: int | None) -> dict[str, float]:
    """Processor time that each of them has used so far."""
    ticks = os.sysconf("SC_CLK_TCK")
    used = {}
    for each in _family(pid) if pid is not None else ():
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        used[_role(each)] = (int(fields[11]) + int(fields[12])) / ticks
    return used


async def keep_peak(pid: int | None, peak: Figures) -> None:
    """Keeps the highest figures in `peak` until it is cancelled."""
    while True:
        for role, figures in processes(pid).items():
            old = peak.get(role, figures)
            peak[role] = {name: max(value, old[name]) for name, value in figures.items()}
        await asyncio.sleep(0.5)


def _family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(int(child) for child in children if ".process" in _command(int(child)))]


def _role(pid: int) -> str:
    module = next((word for word in _command(pid).split("\0") if word.endswith(".process")), "serve")
    return module.removeprefix("arbora.").removesuffix(".process")


def _command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()
