"""A rank of a model, which runs the plans that the tests' process sends it.

    python -c "import rank_worker; rank_worker.main()" DESCRIPTOR

The descriptor is that of a socket, over which come `LoadRank`, plans and other messages. Each is answered: a
plan with its result, an exchange with what the rank has of it, and a refusal to load with its text.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from arbora.runtime.config import ServeConfig
from arbora.runtime.errors import ConfigError
from arbora.runtime.messages import ForgetReplies, StepPlan
from arbora.runtime.model.loading import load_model
from arbora.runtime.model.ranks import ProcessGroupRanks, Rank, Ranks, RanksOnHost
from arbora.runtime.model.runner import Runner
from step_driver import no_masks, no_vocabulary


class RankPlace(NamedTuple):
    """How a rank finds the others."""

    rank: Rank
    file: str
    """path of the file that the ranks share, empty at first"""
    in_process_group: bool

    def connect(self) -> Ranks:
        with open(self.file, "r+b") as file:
            if not self.in_process_group:
                return RanksOnHost(self.rank, file.fileno())
            if dist.is_initialized():
                dist.destroy_process_group()  # of an earlier model
            return ProcessGroupRanks(self.rank, file.fileno(), torch.device("cpu"))


class LoadRank(NamedTuple):
    config: ServeConfig
    place: RankPlace


class Exchange(NamedTuple):
    """Exchanges random numbers with the other ranks."""

    place: RankPlace
    widths: tuple[int, ...]
    dtype: torch.dtype


class Exchanged(NamedTuple):
    """What a rank has of an exchange. The bytes are those of tensors."""

    total: bytes
    joined: bytes
    gathered: list[list[float]]


def make_part(rank: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """The random numbers of a rank, [rows, width]."""
    return torch.from_numpy(np.random.default_rng(rank).standard_normal((3, width))).to(dtype)


def exchange(order: Exchange) -> Exchanged:
    ranks, dtype = order.place.connect(), order.dtype
    number = ranks.rank.number
    total = make_part(number, order.widths[0], dtype)
    ranks.sum_in_place(total)
    joined = ranks.join_columns(make_part(number, order.widths[number], dtype), order.widths)
    return Exchanged(to_bytes(total), to_bytes(joined), ranks.gather([number / 3, 2**53 - 1.0]))


def to_bytes(x: torch.Tensor) -> bytes:
    return x.contiguous().view(torch.uint8).numpy().tobytes()


def load(order: LoadRank) -> Runner:
    return load_model(order.config, no_vocabulary, order.place.connect()).runner


def main() -> None:
    connection: Connection = Connection(int(sys.argv[1]))
    runner: Runner | None = None
    while True:
        try:
            order = connection.recv()
        except EOFError:
            return
        answer: object = None
        try:
            if isinstance(order, LoadRank):
                runner = None  # frees its memory
                runner = load(order)
            elif isinstance(order, Exchange):
                answer = exchange(order)
            elif isinstance(order, StepPlan):
                assert runner is not None
                answer = runner.run(order, no_masks)
            elif isinstance(order, ForgetReplies):
                assert runner is not None
                runner.forget_replies(order)
        except ConfigError as error:  # the first rank raises it too
            answer = str(error)
        except Exception:
            traceback.print_exc()
            os.kill(os.getppid(), signal.SIGTERM)  # it would wait for this rank for ever
            raise
        connection.send(answer)
