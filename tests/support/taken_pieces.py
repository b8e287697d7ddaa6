"""Pieces of a product as the threads of any machine would take them, computed with the kernels' functions."""

from __future__ import annotations

import ctypes
import heapq
from typing import Any

import numpy as np
from arbora.kernels.common.numba_tools import pointer
from arbora.kernels.common.teams import find_teams, take_piece, take_pieces, team_arguments
from arbora.kernels.common.threads import ParallelKernel

TEAMS_AT = 5


@ParallelKernel
def _take_once(arguments: Any) -> None:
    """Arguments: the counter, where the piece and the end are written, the team, all pieces, the divisor or
    0 to take one piece, and those of the teams."""
    taken = pointer(arguments[1], np.int64(0))
    if arguments[4] > 0:
        taken[0], taken[1] = take_pieces(arguments, TEAMS_AT, arguments[2], arguments[3], arguments[4])
    else:
        taken[0] = take_piece(arguments, TEAMS_AT, arguments[2], arguments[3])
        taken[1] = taken[0] + 1


class Taking:
    """Takes pieces of a product as a thread of any team would, one call after another."""

    def __init__(self, pieces: int, threads: int, in_blocks: bool) -> None:
        self._taken, self._pieces = np.zeros(2, np.int64), pieces
        given = [0, self._taken.ctypes.data, 0, pieces, 2 * threads * in_blocks, *team_arguments(threads)]
        self._arguments = np.array(given, np.int64)
        self._call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_take_once.address)

    def take(self, team: int) -> range:
        """The pieces that a thread of the team takes next; empty if there are none."""
        self._arguments[2] = team
        self._call(self._arguments.ctypes.data)
        first, end = self._taken.tolist()
        return range(first, min(end, self._pieces))


def share_of_ideal(pieces: int, threads: int, in_blocks: bool) -> float:
    """Returns how long the pieces would take if no thread was ever idle, divided by how long they take. Each
    piece takes equally long."""
    taking = Taking(pieces, threads, in_blocks)
    teams = [number for number, team in enumerate(find_teams(threads)) for _ in range(team.threads)]
    free = [(0, number, team) for number, team in enumerate(teams or [0] * threads)]
    end = 0
    while free:
        time, number, team = heapq.heappop(free)
        if part := taking.take(team):
            end = max(end, time + len(part))
            heapq.heappush(free, (time + len(part), number, team))
    return pieces / threads / end
