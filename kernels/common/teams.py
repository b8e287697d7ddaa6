"""Teams of threads, which divide a weight's pieces among themselves on large machines.

A core reads the memory of its NUMA node fastest. So the cores of a node are a team, or several, and each team
has a range of the pieces of every product, which lies in the memory of its node. A thread takes pieces of its
team's range first and then those that other teams have left. Each range has a separate counter, because a
counter that many threads advance is passed from core to core each time.

With one node and at most TEAM_THREADS threads there are no teams, and one counter serves all threads.
"""

import os
import sys
from functools import cache
from itertools import accumulate, pairwise
from threading import Thread
from typing import NamedTuple

import numpy as np
import torch
from llvmlite import ir
from numba.core import cgutils

from .emits import INT, emits
from .jit import compiled
from .llvm import I32, I64, size
from .numba_tools import fetch_add, pointer, read_counter, shift
from .processor import cores, cores_of_threads, nodes

TEAM_THREADS = 16
"""Threads of a team, at most."""

LINE = 8
"""int64 values that fill a cache line. No two counters share a line."""

TEAMS, CPUS, BOUNDS = range(3)
"""Places in the table of `team_arguments`: the numbers of teams and of logical CPUs; then the sum of the
threads of all earlier teams for each team, the number of all threads, and the team of each logical CPU."""


class Team(NamedTuple):
    cpus: list[int]
    threads: int


@cache
def find_teams(threads: int) -> list[Team]:
    """Returns the teams, those of a node side by side; [] if there would be only one."""
    homes = [core.node for core in cores_of_threads(threads)] if cores() else []
    teams = []
    for some in nodes():
        of_node = homes.count(some[0].node)
        count = min(len(some), -(-of_node // TEAM_THREADS))
        for team in range(count):
            part = some[len(some) * team // count : len(some) * (team + 1) // count]
            share = of_node * (team + 1) // count - of_node * team // count
            teams.append(Team([cpu for core in part for cpu in core.cpus], share))
    return teams if len(teams) > 1 else []


@cache
def _table(threads: int) -> np.ndarray:
    teams = find_teams(threads)
    of_cpus = np.zeros(max(cpu for team in teams for cpu in team.cpus) + 1, np.int64)
    for number, team in enumerate(teams):
        of_cpus[team.cpus] = number
    bounds = np.cumsum([0, *(team.threads for team in teams)])
    return np.concatenate([[len(teams), len(of_cpus)], bounds, of_cpus]).astype(np.int64)


@cache
def team_arguments(threads: int) -> tuple[int, ...]:
    """The last arguments of a kernel whose threads call `take_piece`: the address of the table, or 0 without
    teams; then the counters."""
    teams = find_teams(threads)
    return (_table(threads).ctypes.data, *([0] * LINE * (len(teams) + 1))) if teams else (0,)


@compiled
def find_own_team(arguments, at):
    """Returns the number of the team to which this thread belongs. at: where `team_arguments` begin in the
    arguments"""
    if arguments[at] == 0:
        return 0
    table, cpu = pointer(arguments[at], np.int64(0)), _current_cpu()
    return table[BOUNDS + table[TEAMS] + 1 + cpu] if cpu < table[CPUS] else 0


@compiled
def take_piece(arguments, at, team, total):
    """Takes a piece for a thread of a team. Returns its number; `total` or more if all pieces are taken."""
    if arguments[at] == 0:
        return fetch_add(arguments, 1)
    return _take_of_teams(arguments, at, team, total, False)[0]


@compiled
def take_pieces(arguments, at, team, total, divisor):
    """Takes some of the remaining pieces, `divisor` times less than there are, at least one. Returns the
    first one and the end; the first is `total` or more if all pieces are taken.

    divisor: twice the number of threads
    """
    if arguments[at] == 0:
        block = max(1, (total - fetch_add(arguments, 0)) // divisor)
        begin = fetch_add(arguments, block)
        return begin, min(total, begin + block)
    return _take_of_teams(arguments, at, team, total, True)


@compiled
def divide_piece(arguments, at, index, works, pieces):
    """Returns the numbers of a work and of a piece of its weight. With teams, the first pieces of all works
    come first, because the first pieces of each weight lie on the first node."""
    if arguments[at] == 0:
        return index // pieces, index % pieces
    return index % works, index // works


@compiled
def _take_of_teams(arguments, at, team, total, in_blocks):
    table = pointer(arguments[at], np.int64(0))
    teams, bounds = table[TEAMS], shift(table, BOUNDS)
    threads = bounds[teams]
    for turn in range(teams):
        each = (team + turn) % teams
        first, last = total * bounds[each] // threads, total * bounds[each + 1] // threads
        counter = shift(arguments, at + LINE * (1 + each))
        left = last - first - read_counter(counter)
        if left <= 0:
            continue
        block = 1
        if in_blocks and turn == 0:
            block = max(1, left // (2 * (bounds[each + 1] - bounds[each])))
        begin = first + fetch_add(counter, block)
        if begin < last:
            return begin, min(last, begin + block)
    return total, total


@emits(INT)
def _current_cpu(builder):
    """The logical CPU on which this thread runs; a call of about 20 ns, without a switch to the kernel."""
    if sys.platform != "linux":
        return size(0)
    call = cgutils.get_or_insert_function(builder.module, ir.FunctionType(I32, []), "sched_getcpu")
    return builder.zext(builder.call(call, []), I64)


def place_by_node(weight: torch.Tensor) -> torch.Tensor:
    """Gives a new tensor [pieces, …] its memory, zeros, from the nodes whose threads take the pieces first.
    With one node the tensor stays as it is.

    Linux takes memory from the node of the thread that writes it first.
    """
    if len(nodes()) < 2 or weight.is_meta:
        return weight
    bounds = [len(weight) * done // len(cores()) for done in accumulate(map(len, nodes()), initial=0)]
    parts = [weight[begin:end] for begin, end in pairwise(bounds)]
    threads = [Thread(target=_clear_on_node, args=each) for each in enumerate(parts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return weight


def copy_by_node(weight: torch.Tensor) -> torch.Tensor:
    """A copy of a weight in memory that `place_by_node` places; with one node, the weight itself."""
    return weight if len(nodes()) < 2 else place_by_node(torch.empty_like(weight)).copy_(weight)


def _clear_on_node(number: int, part: torch.Tensor) -> None:
    run_on_node(number)
    part.view(torch.uint8).numpy().fill(0)


def run_on_node(number: int) -> None:
    """Lets this thread run on the cores of a node only, or anywhere if there is one node. Nodes are numbered
    from 0, and after the last one comes the first again."""
    if len(nodes()) > 1:
        some = nodes()[number % len(nodes())]
        os.sched_setaffinity(0, [cpu for core in some for cpu in core.cpus])
