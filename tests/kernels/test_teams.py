"""Teams of threads: how they divide pieces, and where weights are placed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from arbora.kernels.common import teams
from arbora.kernels.common.numba_tools import fetch_add, pointer, shift
from arbora.kernels.common.processor import thread_masks
from arbora.kernels.common.program import Program
from arbora.kernels.common.reused_memory import Blocks, ReusedMemory
from arbora.kernels.common.teams import (
    TEAM_THREADS,
    Team,
    copy_by_node,
    find_own_team,
    find_teams,
    place_by_node,
    run_on_node,
    take_piece,
    team_arguments,
)
from arbora.kernels.common.threads import ParallelKernel, recorded_calls
from arbora.kernels.linear import CodedShape
from arbora.kernels.linear.fp8 import Fp8CpuPacker
from arbora.kernels.linear.half_cpu import HalfCpuProduct
from arbora.kernels.linear.integer import IntegerCpuPacker
from simulated_machine import SimulatedMachine
from taken_pieces import Taking

OUTPUTS, INPUTS = 1000, 256


def test_one_node_has_teams_only_for_many_threads(machine: SimulatedMachine) -> None:
    machine.has_sockets(1, 64)
    assert find_teams(TEAM_THREADS) == [] and team_arguments(TEAM_THREADS) == (0,)
    found = find_teams(64)
    assert [team.threads for team in found] == [16] * 4
    assert found[1].cpus == [cpu for core in range(16, 32) for cpu in (core, core + 64)]


def test_each_node_has_a_team(machine: SimulatedMachine) -> None:
    machine.has_sockets(2, 4)
    assert find_teams(8) == [Team([0, 8, 1, 9, 2, 10, 3, 11], 4), Team([4, 12, 5, 13, 6, 14, 7, 15], 4)]
    assert [team.threads for team in find_teams(5)] == [3, 2]
    assert find_teams(1) == [], "a single thread"


def test_a_node_with_more_cores_in_the_mask_has_more_threads(machine: SimulatedMachine) -> None:
    machine.has_sockets(2, 8)
    machine.allows([0, 1, 2, 3, 4, 5, 8, 9])
    assert [(team.cpus, team.threads) for team in find_teams(4)] == [([0, 1, 2, 3, 4, 5], 3), ([8, 9], 1)]


def test_fewer_threads_than_cores_are_bound_to_nodes(machine: SimulatedMachine) -> None:
    machine.has_sockets(2, 4)
    of_node = [{0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}]
    masks = [set(np.flatnonzero(np.unpackbits(mask, bitorder="little"))) for mask in _masks(3)]
    assert masks == [of_node[0] | of_node[1], of_node[0], of_node[0], of_node[1]]
    masks = [set(np.flatnonzero(np.unpackbits(mask, bitorder="little"))) for mask in _masks(8)]
    assert masks[1:] == [{core, core + 8} for core in range(8)], "a thread for each core"
    assert thread_masks(9) is None and thread_masks(1) is None
    machine.has_sockets(1, 4)
    machine.write("sys/devices/system/node/node0/cpulist", "0-7")
    assert thread_masks(3) is None, "one node"


def _masks(threads: int) -> np.ndarray:
    masks = thread_masks(threads)
    assert masks is not None
    return masks


@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize(("sockets", "threads"), [(1, 4), (2, 8), (2, 5), (1, 40), (4, 64)])
@pytest.mark.parametrize("pieces", [0, 1, 3, 32, 1000])
def test_threads_take_each_piece_once_and_those_of_their_own_team_first(
    machine: SimulatedMachine, in_blocks: bool, sockets: int, threads: int, pieces: int
) -> None:
    machine.has_sockets(sockets, -(-threads // sockets))
    shares = [team.threads for team in find_teams(threads)] or [threads]
    ends = [pieces * sum(shares[: team + 1]) // threads for team in range(len(shares))]
    taking, taken = Taking(pieces, threads, in_blocks), list[int]()
    own = len(shares) - 1
    while part := taking.take(own):
        if len(taken) < pieces - (ends[own - 1] if own else 0):
            assert part[0] >= (ends[own - 1] if own else 0), "a piece of the team's range"
        else:
            assert len(part) == 1, "others need the rest"
        taken.extend(part)
    assert sorted(taken) == list(range(pieces))
    assert not any(taking.take(team) for team in range(len(shares)))


needs_two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two nodes need two cores")


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


COLUMNS = 3


@ParallelKernel
def _note_takers(arguments: Any) -> None:
    """Arguments: the counter, all pieces, where the threads' teams and pieces are written in order, its
    counter, and those of the teams."""
    team, noted = find_own_team(arguments, 4), pointer(arguments[2], np.int64(0))
    thread = fetch_add(shift(arguments, 3), 1 << 32)
    while True:
        piece = take_piece(arguments, 4, team, arguments[1])
        if piece >= arguments[1]:
            break
        at = fetch_add(shift(arguments, 3), 1) & 0xFFFFFFFF
        row = shift(noted, COLUMNS * at)
        row[0], row[1], row[2] = thread >> 32, team, piece
        for _ in range(1000):
            fetch_add(row, 0)  # takes time, so that the other thread takes pieces too


@needs_two_cores
def test_threads_on_two_nodes_take_the_ranges_of_their_nodes_first(
    machine: SimulatedMachine, two_threads: None
) -> None:
    machine.has_real_cores(nodes=2)
    pieces = 201
    noted = np.full((pieces, COLUMNS), -1, np.int64)
    with recorded_calls() as calls:
        _note_takers.run([pieces, noted.ctypes.data, 0, *team_arguments(2)], 2)
    program, teams_seen = Program(calls), set[int]()
    for turn in range(200):
        if turn >= 3 and len(teams_seen) == 2:
            break
        noted[:] = -1
        program.run()
        assert sorted(noted[:, 2]) == list(range(pieces))
        for thread in set(noted[:, 0]):
            rows = noted[noted[:, 0] == thread]
            (team,) = set(rows[:, 1])
            teams_seen.add(team)
            is_own = (rows[:, 2] >= pieces // 2) == (team == 1)
            assert np.all(np.diff(is_own.astype(int)) <= 0), "own pieces first"
            if not is_own.all():
                of_team = noted[(noted[:, 2] >= pieces // 2) == (team == 1)]
                assert len(of_team) == (pieces + team) // 2, "the team's range was taken first"
    assert teams_seen == {0, 1}, "a thread of one node took all pieces each time"


def products(name: str) -> Any:
    """Makes a product, in memory that is placed for the nodes at this time."""
    torch.manual_seed(1)
    if name in ("bfloat16", "float16"):
        weight = torch.randn(OUTPUTS, INPUTS).to(getattr(torch, name))
        return HalfCpuProduct(weight, torch.randn(OUTPUTS))
    if name == "fp8":
        packer: Any = Fp8CpuPacker(CodedShape(OUTPUTS, INPUTS, None, 64, 0))
        codes = torch.randn(OUTPUTS, INPUTS).to(torch.float8_e4m3fn)
        packer.write(0, codes, torch.rand(OUTPUTS, INPUTS // 64))
        return packer.product(torch.randn(OUTPUTS))
    bits = int(name)
    packer = IntegerCpuPacker(CodedShape(OUTPUTS, INPUTS, bits, 32, 8))
    codes = torch.randint(0, 1 << bits, (OUTPUTS, INPUTS), dtype=torch.uint8)
    packer.write(0, codes, torch.rand(OUTPUTS, INPUTS // 32), None)
    return packer.product(None)


KINDS = ["4", "8", "fp8", "bfloat16", "float16"]


@needs_two_cores
@pytest.mark.parametrize("rows", [1, 5, 40, 130])
@pytest.mark.parametrize("name", KINDS)
def test_products_on_two_nodes_give_the_bits_of_one_node(
    machine: SimulatedMachine, two_threads: None, name: str, rows: int
) -> None:
    x = torch.randn(rows, INPUTS).bfloat16()
    machine.has_real_cores(nodes=1)
    assert team_arguments(2) == (0,)
    expected = products(name)(x)
    machine.has_real_cores(nodes=2)
    assert len(team_arguments(2)) > 1
    product = products(name)
    assert torch.equal(product(x), expected)
    blocks = Blocks()  # kept, because the program writes to them
    with recorded_calls() as calls, ReusedMemory(blocks):
        result = product(x)
    program = Program(calls)
    for _ in range(2):
        result.zero_()
        program.run()
        assert torch.equal(result, expected)


def test_each_node_gives_memory_to_its_range_of_a_weight(
    machine: SimulatedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.has_sockets(2, 4)
    machine.allows([0, 1, 2, 8, 9, 10, 4, 12])
    weight = torch.full((10, 4096), 7, dtype=torch.int16)
    bound = dict[str, set[int]]()

    def note(_: int, cpus: list[int]) -> None:
        bound[threading.current_thread().name] = set(cpus)

    monkeypatch.setattr(os, "sched_setaffinity", note)
    assert place_by_node(weight) is weight
    assert sorted(bound.values(), key=min) == [{0, 1, 2, 8, 9, 10}, {4, 12}]
    assert threading.current_thread().name not in bound, "this thread stays where it was"
    assert not weight.any()
    weight = torch.arange(40).view(8, 5)
    copied = copy_by_node(weight)
    assert torch.equal(copied, weight) and copied.data_ptr() != weight.data_ptr()


def test_with_one_node_a_weight_stays_as_it_is(
    machine: SimulatedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.has_sockets(1, 64)
    monkeypatch.setattr(os, "sched_setaffinity", None)
    weight = torch.ones(10, 5)
    assert place_by_node(weight).all() and copy_by_node(weight) is weight
    run_on_node(0)


def test_a_thread_writes_only_the_range_of_the_node_on_which_it_runs(
    machine: SimulatedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of four cores are on the first node."""
    machine.has_sockets(2, 4)
    machine.allows([0, 1, 2, 4])
    weight, cleared = torch.ones(8, 3), dict[int, list[int]]()
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cpus: None)
    monkeypatch.setattr(teams, "_clear_on_node", lambda number, part: cleared.update({number: _rows(part)}))

    def _rows(part: torch.Tensor) -> list[int]:
        first = part.storage_offset() // 3
        return list(range(first, first + len(part)))

    place_by_node(weight)
    assert cleared == {0: [0, 1, 2, 3, 4, 5], 1: [6, 7]}
