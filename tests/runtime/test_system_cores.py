"""How many threads compute on machines with several sockets, logical CPUs and quotas."""

from __future__ import annotations

import os

import pytest
from arbora.runtime.cgroups import find_cgroups
from arbora.runtime.system_cores import Core, count_usable_cores, find_cores, find_quota
from arbora.runtime.system_memory import free_host_memory, memory_limit
from simulated_machine import SimulatedMachine

ALONE = "0::/"
MIB = 1 << 20


def test_two_sockets_have_two_nodes_and_a_thread_for_each_core(machine: SimulatedMachine) -> None:
    machine.has_sockets(2, 4)
    cores = find_cores()
    assert cores == [Core((cpu, cpu + 8), cpu // 4) for cpu in range(8)]
    assert count_usable_cores() == 8


def test_cores_are_sorted_by_nodes_even_if_their_numbers_alternate(machine: SimulatedMachine) -> None:
    machine.has_cores([[0], [1], [2], [3]], nodes=["0,2", "1,3"])
    assert [(core.cpus[0], core.node) for core in find_cores()] == [(0, 0), (2, 0), (1, 1), (3, 1)]


def test_a_core_of_which_one_logical_cpu_may_be_used_counts_once(machine: SimulatedMachine) -> None:
    machine.has_sockets(1, 8)
    machine.allows(range(8, 16))
    assert [core.cpus for core in find_cores()] == [(cpu,) for cpu in range(8, 16)]
    assert count_usable_cores() == 8
    machine.allows([0, 8, 1])
    assert [core.cpus for core in find_cores()] == [(0, 8), (1,)]


def test_a_quota_of_two_and_a_half_cpus_allows_three_threads(machine: SimulatedMachine) -> None:
    machine.has_sockets(1, 8)
    machine.is_in(ALONE)
    machine.write("sys/fs/cgroup/cgroup.controllers", "cpu memory")
    file = machine.write("sys/fs/cgroup/cpu.max", "250000 100000")
    assert find_quota() == (2.5, file)
    assert count_usable_cores() == 3
    machine.allows([0, 1])
    assert count_usable_cores() == 2, "there are fewer cores"
    machine.write("sys/fs/cgroup/cpu.max", "1000 100000")
    assert count_usable_cores() == 1


def test_the_smallest_quota_of_nested_groups_counts(machine: SimulatedMachine) -> None:
    machine.has_sockets(1, 8)
    machine.is_in("0::/user.slice/engine.service/worker")
    machine.write("sys/fs/cgroup/cgroup.controllers", "cpu memory")
    machine.write("sys/fs/cgroup/user.slice/engine.service/worker/cpu.max", "max 100000")
    smallest = machine.write("sys/fs/cgroup/user.slice/engine.service/cpu.max", "200000 50000")
    machine.write("sys/fs/cgroup/user.slice/cpu.max", "600000 100000")
    machine.write("sys/fs/cgroup/other.slice/cpu.max", "100000 100000")
    assert find_quota() == (4, smallest)
    assert count_usable_cores() == 4


@pytest.mark.parametrize("path", ["/docker/5f", "/"])
def test_a_container_of_version_1_sees_its_group_at_the_mount(machine: SimulatedMachine, path: str) -> None:
    machine.has_sockets(1, 8)
    machine.is_in(f"4:memory:{path}", f"2:cpu,cpuacct:{path}", "1:name=systemd:/", ALONE)
    file = machine.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "150000")
    machine.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000")
    assert find_quota() == (1.5, file)
    assert count_usable_cores() == 2
    machine.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1")
    assert find_quota() is None and count_usable_cores() == 8


def test_a_group_of_version_1_inside_a_group_inherits_its_quota(machine: SimulatedMachine) -> None:
    machine.has_sockets(1, 8)
    machine.is_in("3:cpuacct,cpu:/a/b")
    for group, quota in (("a", "300000"), ("a/b", "500000"), (".", "-1")):
        machine.write(f"sys/fs/cgroup/cpu/{group}/cpu.cfs_quota_us", quota)
        machine.write(f"sys/fs/cgroup/cpu/{group}/cpu.cfs_period_us", "100000")
    assert count_usable_cores() == 3


def test_a_group_outside_the_namespace_is_looked_for_at_the_mount(machine: SimulatedMachine) -> None:
    machine.is_in("0::/../../other")
    machine.write("sys/fs/cgroup/cgroup.controllers", "cpu")
    mount = machine.root / "sys/fs/cgroup"
    assert list(find_cgroups("cpu")) == [mount / "other", mount]


def test_without_these_files_each_allowed_cpu_is_a_core(machine: SimulatedMachine) -> None:
    machine.allows([1, 3, 4])
    assert find_cores() == [Core((1,), 0), Core((3,), 0), Core((4,), 0)]
    assert find_quota() is None and memory_limit() is None
    assert count_usable_cores() == 3


def test_without_affinity_the_system_counts_the_cores(
    machine: SimulatedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.allows(range(6))
    monkeypatch.delattr(os, "sched_getaffinity")
    assert find_cores() == [] and count_usable_cores() == 6


@pytest.mark.parametrize("text", ["", "max", "max 100000", "100000", "100000 0", "many 100000"])
def test_a_quota_that_says_no_number_is_none(machine: SimulatedMachine, text: str) -> None:
    machine.has_sockets(1, 2)
    machine.is_in(ALONE)
    machine.write("sys/fs/cgroup/unified/cpu.max", text)
    assert find_quota() is None


@pytest.mark.parametrize(
    ("line", "folder", "names", "prefix"),
    [
        (ALONE, "unified", ("memory.max", "memory.current"), ""),
        ("4:memory:/", "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes"), "total_"),
    ],
)
def test_memory_is_limited_by_the_group_with_the_least(
    machine: SimulatedMachine, line: str, folder: str, names: tuple[str, str], prefix: str
) -> None:
    limit, used = names
    machine.is_in(f"{line}a/b")
    for group, bytes_allowed, bytes_used in (("a/b", 3 * MIB, 0), ("a", 2 * MIB, MIB), (".", 1 << 63, MIB)):
        machine.write(f"sys/fs/cgroup/{folder}/{group}/{limit}", str(bytes_allowed))
        machine.write(f"sys/fs/cgroup/{folder}/{group}/{used}", str(bytes_used))
        stat = f"{prefix}active_file 1000\n{prefix}inactive_file 24"
        machine.write(f"sys/fs/cgroup/{folder}/{group}/memory.stat", stat)
    assert memory_limit() == 2 * MIB
    assert free_host_memory() == MIB + 1024
