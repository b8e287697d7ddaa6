"""Cores as the operating system counts and gives them."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import NamedTuple

from . import cgroups

CPUS, NODES = "sys/devices/system/cpu", "sys/devices/system/node"


class Core(NamedTuple):
    """A physical core."""

    cpus: tuple[int, ...]
    """its logical CPUs that this process may use"""
    node: int
    """the NUMA node, whose memory the core reads fastest"""


class Quota(NamedTuple):
    """How long a control group may compute, in CPUs: with 2.5, 250 ms of processor time in each 100 ms."""

    cpus: float
    file: Path
    """which sets it"""


def find_cores() -> list[Core]:
    """Returns the cores of this thread's affinity mask, by nodes; [] if the system does not tell."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    nodes = _find_nodes()
    found: dict[str, list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = _read(cgroups.ROOT / CPUS / f"cpu{cpu}/topology/thread_siblings_list")
        found.setdefault(siblings or str(cpu), []).append(cpu)
    cores = [Core(tuple(cpus), nodes.get(cpus[0], 0)) for cpus in found.values()]
    return sorted(cores, key=lambda core: (core.node, core.cpus))


def find_quota() -> Quota | None:
    """Returns the smallest quota of this process's control group and its parents; None: there is none."""
    found = []
    for group in cgroups.find_cgroups("cpu"):
        for file in (group / "cpu.max", group / "cpu.cfs_quota_us"):
            words = _read(file).split()
            if file.name == "cpu.cfs_quota_us":
                words += _read(group / "cpu.cfs_period_us").split()
            if len(words) == 2 and words[0].isdecimal() and words[1].isdecimal() and int(words[1]):
                found.append(Quota(int(words[0]) / int(words[1]), file))
    return min(found, default=None)


def count_usable_cores() -> int:
    """Returns how many threads can compute at a time: one for each core, fewer if a quota allows fewer CPUs.

    A quota of 2.5 CPUs allows 3 threads. A second thread on a core would add little, because both wait for
    the same memory.
    """
    cores, quota = len(find_cores()) or os.cpu_count() or 1, find_quota()
    return cores if quota is None else max(1, min(cores, math.ceil(quota.cpus)))


def _find_nodes() -> dict[int, int]:
    """Returns the node of each logical CPU."""
    lists = sorted((cgroups.ROOT / NODES).glob("node[0-9]*/cpulist"))
    return {cpu: int(file.parent.name[4:]) for file in lists for cpu in _read_cpus(_read(file))}


def _read_cpus(text: str) -> list[int]:
    """Reads the numbers of CPUs from a list such as "0-3,8", which names 0 to 3 and 8."""
    ranges = [part.partition("-") for part in text.split(",") if part]
    return [cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1)]


def _read(file: Path) -> str:
    """The text of a file of the system; "" if there is no such file."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
