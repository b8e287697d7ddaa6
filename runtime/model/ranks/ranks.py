"""A rank, its part of a model, and its connection to the other ranks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from ....kernels.ranks import RankMemory, gather, join_columns, sum_in_place
from ...errors import ConfigError
from ...processes.child import RANK_MEMORY_VARIABLE, RANK_VARIABLE

BORDERS = (256, 128, 64, 32, 16, 8, 4, 2)
"""Ranks divide numbers into pieces of the first of these sizes that gives each rank MIN_PIECES pieces on
average. A large size keeps the groups of quantized weights whole."""
MIN_PIECES = 4


class Rank(NamedTuple):
    """One of `total` ranks."""

    number: int = 0
    total: int = 1

    def take(self, count: int, size: int = 1) -> range:
        """Returns this rank's range of `count` numbers, or of the numbers of `count` heads of `size` each."""
        if size == 1:
            size = next((each for each in BORDERS if self._may_cut(count, each)), 1)
            count //= size
        heads = self.take_heads(count)
        return range(heads.start * size, heads.stop * size)

    def take_heads(self, count: int) -> range:
        """Returns this rank's range of `count` heads. If there are fewer heads than ranks, neighbouring ranks
        have the same head."""
        first = self.number * count // self.total
        return range(first, first + 1 if count < self.total else (self.number + 1) * count // self.total)

    def divide(self, count: int) -> list[int]:
        """How many of `count` numbers each rank has."""
        return [len(Rank(number, self.total).take(count)) for number in range(self.total)]

    def _may_cut(self, count: int, border: int) -> bool:
        return count % border == 0 and count // border >= MIN_PIECES * self.total


class Ranks(Protocol):
    """This rank and its connection to the others. All ranks call the same methods in the same order."""

    rank: Rank

    def sum_in_place(self, x: torch.Tensor) -> None:
        """Replaces x by the sum of the tensors of all ranks."""
        ...

    def join_columns(self, part: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
        """Concatenates the parts [rows, width] of all ranks along dimension 1."""
        ...

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """The values of each rank. Returns when all ranks have called it."""
        ...


class OneRank:
    """A process that has the whole model."""

    rank = Rank()

    def sum_in_place(self, x: torch.Tensor) -> None:
        pass

    def join_columns(self, part: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
        return part

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        return [list(values)]


ONE_RANK = OneRank()


class RanksOnHost:
    """Ranks on the CPU of one machine."""

    def __init__(self, rank: Rank, descriptor: int) -> None:
        """descriptor: the descriptor of an empty file, which all ranks map into their memory"""
        self.rank, self._memory = rank, RankMemory(descriptor, *rank)

    def sum_in_place(self, x: torch.Tensor) -> None:
        sum_in_place(self._memory, x)

    def join_columns(self, part: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
        return join_columns(self._memory, part, widths)

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        gathered: list[list[float]] = gather(self._memory, values).tolist()
        return gathered


def refuse_parts(rank: Rank, reason: str) -> None:
    """Raises ConfigError if there are several ranks. reason: why they can't divide the model"""
    if rank.total > 1:
        raise ConfigError(
            f"--tp {rank.total}: {reason}, so its matrices can't be divided among ranks. Leave the option "
            "out."
        )


def open_ranks(count: int) -> Ranks:
    """Connects this process to the other ranks, as the supervisor's variables say."""
    if count == 1:
        return ONE_RANK
    rank = Rank(int(os.environ[RANK_VARIABLE]), count)
    return RanksOnHost(rank, int(os.environ[RANK_MEMORY_VARIABLE]))
