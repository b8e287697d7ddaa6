"""Memory, descriptors and processor time of a server's processes."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

import psutil
from server_process import MAIN_ROLES, processes_by_role

MIB = 1 << 20
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


@dataclass(frozen=True)
class Sample:
    """A process at one time, or all of one kind together. `seconds` are since the measurement began; memory
    is in bytes; `pid` is that of the first process."""

    seconds: float
    pid: int
    rss: int
    uss: int
    descriptors: int
    threads: int
    cpu_seconds: float
    processes: int = 1

    def __add__(self, other: Sample) -> Sample:
        return Sample(
            self.seconds,
            self.pid,
            self.rss + other.rss,
            self.uss + other.uss,
            self.descriptors + other.descriptors,
            self.threads + other.threads,
            self.cpu_seconds + other.cpu_seconds,
            self.processes + other.processes,
        )


def sample_processes(supervisor: int, seconds: float) -> dict[str, Sample]:
    """By role; all processes that compile or follow grammars together, as `worker`."""
    found: dict[str, Sample] = {}
    for role, process in processes_by_role(supervisor).items():
        try:
            with process.oneshot():
                memory, times = process.memory_full_info(), process.cpu_times()
                sample = Sample(
                    seconds,
                    process.pid,
                    memory.rss,
                    memory.uss,
                    process.num_fds(),
                    process.num_threads(),
                    times.user + times.system,
                )
        except psutil.Error:
            continue
        kind = role.split()[0]
        found[kind] = found[kind] + sample if kind in found else sample
    return found
