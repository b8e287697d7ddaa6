"""Memory, descriptors and processor time of a server's processes."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress

import psutil
from server_process import MAIN_ROLES, processes_by_role

Figures = dict[str, dict[str, int]]
"""`mb` of memory and open `descriptors` by role"""


def processes(pid: int | None) -> Figures:
    """The processes below a supervisor, without grammar processes; none without a supervisor."""
    return {
        role: {"mb": round(process.memory_info().rss / 1e6), "descriptors": process.num_fds()}
        for role, process in _main_processes(pid).items()
    }


def cpu_seconds(pid: int | None) -> dict[str, float]:
    """Processor time that each of them has used so far, with that of its ended children; `workers` are the
    grammar processes."""
    used: Counter[str] = Counter()
    for role, process in ({} if pid is None else processes_by_role(pid)).items():
        with suppress(psutil.NoSuchProcess):
            used[role if role in MAIN_ROLES else "workers"] += sum(process.cpu_times()[:4])
    return dict(used)


async def keep_peak(pid: int | None, peak: Figures) -> None:
    """Keeps the highest figures in `peak` until it is cancelled."""
    while True:
        for role, figures in processes(pid).items():
            old = peak.get(role, figures)
            peak[role] = {name: max(value, old[name]) for name, value in figures.items()}
        await asyncio.sleep(0.5)


def _main_processes(pid: int | None) -> dict[str, psutil.Process]:
    found = {} if pid is None else processes_by_role(pid)
    return {role: process for role, process in found.items() if role in MAIN_ROLES}
