"""A directory that stands for /proc and /sys of another machine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from arbora.kernels.common import processor, teams
from arbora.runtime import cgroups

CACHES = (
    processor.cores,
    processor.thread_masks,
    teams.find_teams,
    teams._table,
    teams.team_arguments,
)


class SimulatedMachine:
    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self._monkeypatch = root, monkeypatch
        self._real = os.sched_getaffinity(0)
        monkeypatch.setattr(cgroups, "ROOT", root)
        self.forget()

    def forget(self) -> None:
        for each in CACHES:
            each.cache_clear()

    def write(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")
        return file

    def has_cores(self, cores: Sequence[Sequence[int]], nodes: Sequence[str] = ()) -> None:
        """cores: the logical CPUs of each; nodes: the list of CPUs of each"""
        for core in cores:
            for cpu in core:
                path = f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
                self.write(path, ",".join(map(str, core)))
        for number, cpus in enumerate(nodes):
            self.write(f"sys/devices/system/node/node{number}/cpulist", cpus)
        self.allows(cpu for core in cores for cpu in core)

    def allows(self, cpus: Iterable[int]) -> None:
        mask = set(cpus)
        self._monkeypatch.setattr(os, "sched_getaffinity", lambda _: mask)
        self._monkeypatch.setattr(os, "cpu_count", lambda: max(mask) + 1)
        self.forget()

    def has_sockets(self, sockets: int, cores: int) -> None:
        """Each core has two logical CPUs, numbered as Linux does: first one of each core, then the others."""
        of_all = sockets * cores
        ends = [(first * cores, (first + 1) * cores - 1) for first in range(sockets)]
        nodes = [f"{begin}-{end},{begin + of_all}-{end + of_all}" for begin, end in ends]
        self.has_cores([[cpu, cpu + of_all] for cpu in range(of_all)], nodes)

    def has_real_cores(self, nodes: int) -> None:
        """Makes one or two NUMA nodes of the first two logical CPUs that this process may use."""
        first, second = sorted(self._real)[:2]
        of_nodes = [f"{first},{second}"] if nodes == 1 else [str(first), str(second)]
        self.has_cores([[first], [second]], of_nodes)

    def is_in(self, *groups: str) -> None:
        """Sets the lines of /proc/self/cgroup."""
        self.write("proc/self/cgroup", "\n".join(groups))
