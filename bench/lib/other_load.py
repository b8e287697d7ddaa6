"""Processor time and memory of a server's processes, and the load of all other processes beside them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil

Run = dict[str, Any]


@dataclass(frozen=True)
class Moment:
    """Seconds: of the clock, and of processor time since some start."""

    at: float
    machine: float
    """used on all cores, by anything, and time that the hypervisor gave to others"""
    ours: float
    """used by the measured server and by this process"""


def now(server: int) -> Moment:
    """`server` is the process id of the measured server; its children count too."""
    times = psutil.cpu_times()
    machine = times.user + times.system + getattr(times, "nice", 0.0) + getattr(times, "steal", 0.0)
    own = psutil.Process().cpu_times()
    return Moment(time.monotonic(), machine, tree_seconds(server) + own.user + own.system)


def other_load(before: Moment, after: Moment, cores: int) -> float:
    """The share of all cores that other processes and other virtual machines used, 0 to 1."""
    others = (after.machine - before.machine) - (after.ours - before.ours)
    return min(1.0, max(0.0, others / (cores * (after.at - before.at))))


def tree_seconds(root: int) -> float:
    """Processor time of a process and its descendants, with those that have ended and were waited for."""
    total = 0.0
    for process in _tree(root):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
            total += getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    return total


def resident_mb(root: int) -> int:
    """Memory of a process and its descendants, in megabytes (10⁶). On Linux a page that several share counts
    once."""
    total = 0
    for process in _tree(root):
        with contextlib.suppress(psutil.Error):
            info = process.memory_full_info()
            total += getattr(info, "pss", info.rss)
    return round(total / 1e6)


def quiet_run(measure: Callable[[int], Run], most_load: float, repeats: int) -> Run:
    """The first run whose `other_load` is at most `most_load`.

    `measure` gets the number of the attempt. After `repeats` repetitions the run with the least other load
    is returned, marked as `spoilt`.
    """
    runs: list[Run] = []
    for attempt in range(repeats + 1):
        runs.append(measure(attempt))
        if runs[-1]["other_load"] <= most_load:
            return {**runs[-1], "attempts": len(runs), "spoilt": False}
    return {**min(runs, key=lambda run: run["other_load"]), "attempts": len(runs), "spoilt": True}


def _tree(root: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(root)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
