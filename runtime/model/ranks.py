"""The model processes of one replica, which are ranks: each has a part of every layer's heads and inner
numbers, and of the vocabulary. What they compute with whole rows is the same on all of them, to the bit."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import torch

from ...kernels.ranks import RankMemory, gather, join_columns, sum_in_place
from ..errors import ConfigError
from ..messages import StepMasks, StepResult
from ..processes.child import RANK_MEMORY_VARIABLE, RANK_VARIABLE

BORDERS = (256, 128, 64, 32, 16, 8, 4, 2)
"""Numbers are divided at multiples of the first of these of which each rank gets MIN_PIECES on average: at
borders of the groups of quantized weights, unless these are large."""
MIN_PIECES = 4


class Rank(NamedTuple):
    """One of `total` ranks."""

    number: int = 0
    total: int = 1

    def take(self, count: int, size: int = 1) -> range:
        """The numbers that it has of `count` heads of `size` numbers each, or of `count` numbers."""
        if size == 1:
            size = next((each for each in BORDERS if self._may_cut(count, each)), 1)
            count //= size
        heads = self.take_heads(count)
        return range(heads.start * size, heads.stop * size)

    def take_heads(self, count: int) -> range:
        """The heads that it has of `count`. If there are fewer heads than ranks, neighbours have the same
        one."""
        first = self.number * count // self.total
        return range(first, first + 1 if count < self.total else (self.number + 1) * count // self.total)

    def divide(self, count: int) -> list[int]:
        """How many of `count` numbers each rank has."""
        return [len(Rank(number, self.total).take(count)) for number in range(self.total)]

    def _may_cut(self, count: int, border: int) -> bool:
        return count % border == 0 and count // border >= MIN_PIECES * self.total


class RanksDifferError(Exception):
    """The ranks have computed different tokens, so nothing that they compute later can be trusted."""


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
        """descriptor: of an empty file that the ranks share"""
        self.rank, self._memory = rank, RankMemory(descriptor, *rank)

    def sum_in_place(self, x: torch.Tensor) -> None:
        sum_in_place(self._memory, x)

    def join_columns(self, part: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
        return join_columns(self._memory, part, widths)

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        gathered: list[list[float]] = gather(self._memory, values).tolist()
        return gathered


def refuse_parts(rank: Rank, computed: str) -> None:
    """Raises ConfigError if a model that can't be divided is to be. computed: what computes it, and how"""
    if rank.total > 1:
        raise ConfigError(
            f"--tp {rank.total}: {computed}, so its matrices can't be divided among ranks. Leave the option "
            "out."
        )


@contextmanager
def first_rank_first(ranks: Ranks) -> Iterator[None]:
    """Context that the other ranks enter when the first one has left it."""
    if ranks.rank.number:
        ranks.gather([0.0])
    yield
    if not ranks.rank.number:
        ranks.gather([0.0])


def find_least(ranks: Ranks, values: Sequence[int]) -> list[int]:
    """The smallest of all ranks' values, at each place."""
    return [int(min(each)) for each in zip(*ranks.gather(values), strict=True)]


def agree_on_masks(ranks: Ranks, masks: StepMasks | None) -> StepMasks | None:
    """The masks; None on all ranks if they came too late on one."""
    came = ranks.gather([masks is not None])
    return masks if min(came) == [1.0] else None


def agree_on_result(ranks: Ranks, result: StepResult) -> None:
    """Gives the result the time that the first rank has measured, by which drafts are chosen. Raises
    RanksDifferError if the ranks have sampled different tokens."""
    if ranks.rank.total == 1:
        return
    found = ranks.gather([zlib.crc32(result.counts + result.tokens), result.elapsed_ms])
    different = [number for number, (digest, _) in enumerate(found) if digest != found[0][0]]
    if different:
        raise RanksDifferError(
            f"rank {different[0]} has sampled other tokens than rank 0 in step {result.step}. Please report "
            "this with the model and the options; --tp 1 serves it without ranks."
        )
    result.elapsed_ms = found[0][1]


def open_ranks(count: int) -> Ranks:
    """Connects this process to the other ranks, as the supervisor's variables say."""
    if count == 1:
        return ONE_RANK
    rank = Rank(int(os.environ[RANK_VARIABLE]), count)
    return RanksOnHost(rank, int(os.environ[RANK_MEMORY_VARIABLE]))
