"""A rank, its part of a model, and its connection to the other ranks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple, Protocol

import torch
import torch.distributed as dist
import torch.nn.functional as F

from ....kernels.ranks import RankMemory, gather, join_columns, sum_in_place
from ...errors import ConfigError
from ...processes.child import RANK_FILE_VARIABLE, RANK_VARIABLE

BORDERS = (256, 128, 64, 32, 16, 8, 4, 2)
"""Ranks divide numbers into pieces of the first of these sizes that gives each rank MIN_PIECES pieces on
average. A large size keeps the groups of quantized weights whole."""
MIN_PIECES = 4
MAX_WAIT = timedelta(days=7)
"""the longest time for which a rank waits for another one, which may take hours to quantize a model; the
supervisor ends ranks that hang"""
LOOPBACK = "lo"
"""network interface that other machines don't reach"""


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


class ProcessGroupRanks:
    """Ranks on devices of their own, in a process group of torch.distributed: NCCL exchanges tensors of GPUs,
    gloo those of the host.

    A sum is added in the dtype of its tensor, in an order that the library chooses, so it may round otherwise
    than that of `RanksOnHost`. All ranks get the same bits.
    """

    def __init__(self, rank: Rank, descriptor: int, device: torch.device) -> None:
        """Returns when all ranks are connected. Raises ConfigError if they can't be. descriptor: the
        descriptor of an empty file, by which they exchange their addresses"""
        self.rank = rank
        for library in ("GLOO", "NCCL"):
            os.environ.setdefault(f"{library}_SOCKET_IFNAME", LOOPBACK)
        try:
            dist.init_process_group(
                "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl",
                # The group opens the file many times, so it gets a copy of the descriptor that stays open.
                init_method=f"file:///proc/self/fd/{os.dup(descriptor)}",
                rank=rank.number,
                world_size=rank.total,
                timeout=MAX_WAIT,
            )
            # NCCL connects the GPUs in the first exchange. A graph can't capture that.
            self.sum_in_place(torch.zeros(1, device=device))
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0]
            raise ConfigError(
                f"--tp {rank.total}: the ranks can't be connected ({reason}). Check the network interfaces "
                "in GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME if they are set; NCCL_DEBUG=INFO logs more."
            ) from error

    def sum_in_place(self, x: torch.Tensor) -> None:
        dist.all_reduce(x)

    def join_columns(self, part: torch.Tensor, widths: Sequence[int]) -> torch.Tensor:
        # All ranks send as much, because NCCL gathers only tensors of one size at once.
        padded = F.pad(part, (0, max(widths) - part.shape[1]))
        gathered = [torch.empty_like(padded) for _ in widths]
        dist.all_gather(gathered, padded)
        return torch.cat([each[:, :width] for each, width in zip(gathered, widths, strict=True)], dim=1)

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        own = torch.tensor(values, dtype=torch.float64)
        gathered = [torch.empty_like(own) for _ in range(self.rank.total)]
        dist.all_gather(gathered, own)
        return [each.tolist() for each in gathered]


def refuse_parts(rank: Rank, reason: str) -> None:
    """Raises ConfigError if there are several ranks. reason: why they can't divide the model"""
    if rank.total > 1:
        raise ConfigError(
            f"--tp {rank.total}: {reason}, so its matrices can't be divided among ranks. Leave the option "
            "out."
        )


def find_rank(total: int) -> Rank:
    """Returns the rank that this process is, by the supervisor's variable."""
    return Rank() if total == 1 else Rank(int(os.environ[RANK_VARIABLE]), total)


def open_ranks(rank: Rank, device: torch.device) -> Ranks:
    """Connects this rank to the others, by the file that the supervisor has opened. Raises ConfigError if
    PyTorch can't connect GPUs."""
    if rank.total == 1:
        return ONE_RANK
    descriptor = int(os.environ[RANK_FILE_VARIABLE])
    if device.type == "cpu":
        return RanksOnHost(rank, descriptor)
    if not dist.is_available() or not dist.is_nccl_available():
        raise ConfigError(
            f"--tp {rank.total}: PyTorch {torch.__version__} has no NCCL, by which GPUs exchange tensors. "
            "Install a build of PyTorch for CUDA, or leave the option out."
        )
    return ProcessGroupRanks(rank, descriptor, device)
