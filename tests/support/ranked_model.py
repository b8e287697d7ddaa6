"""Runs ranks: the first one in this process, the others in processes that all tests share."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from multiprocessing.connection import Connection
from typing import cast

import torch
from arbora.runtime.config import ServeConfig
from arbora.runtime.messages import ForgetReplies, ModelReady, StepPlan, StepResult
from arbora.runtime.model.loading import load_model
from arbora.runtime.model.ranks import Rank
from arbora.runtime.model.runner import Runner
from arbora.runtime.model.running_step import MasksSource
from rank_worker import Exchange, Exchanged, LoadRank, RankPlace, exchange
from step_driver import no_vocabulary


@cache
def _worker(number: int) -> Connection:
    """The connection to the process of a rank, which ends with this one."""
    ours, theirs = socket.socketpair()
    subprocess.Popen(
        [sys.executable, "-c", "import rank_worker; rank_worker.main()", str(theirs.fileno())],
        env={**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        pass_fds=[theirs.fileno()],
    )
    theirs.close()
    return Connection(ours.detach())


class RankedRunner:
    """Runs each plan on all ranks, in place of a `Runner`."""

    def __init__(self, first: Runner, others: Sequence[Connection]) -> None:
        self._first, self._others = first, others

    def run(self, plan: StepPlan, masks: MasksSource) -> StepResult:
        for other in self._others:
            other.send(plan)
        result = self._first.run(plan, masks)
        for other in self._others:
            found = other.recv()
            assert isinstance(found, StepResult), found
            assert (found.tokens, found.counts) == (result.tokens, result.counts)
        return result

    def forget_replies(self, order: ForgetReplies) -> None:
        self._first.forget_replies(order)
        for other in self._others:
            other.send(order)
            assert other.recv() is None


def load_ranks(config: ServeConfig, in_process_group: bool = False) -> tuple[Runner, ModelReady]:
    """Loads all ranks of a model. in_process_group: they exchange tensors as those on GPUs do, but by gloo,
    which the programs of CPU steps can't contain"""
    if config.tp == 1:
        loaded = load_model(config, no_vocabulary)
        return loaded.runner, loaded.ready
    if in_process_group:
        config = replace(config, enforce_eager=True)
    others = [_worker(number) for number in range(1, config.tp)]
    with _places(config.tp, in_process_group) as (first, *places):
        for other, place in zip(others, places, strict=True):
            other.send(LoadRank(config, place))
        try:
            loaded = load_model(config, no_vocabulary, first.connect())
        finally:
            answers = [other.recv() for other in others]
    assert not any(answers), answers
    return cast(Runner, RankedRunner(loaded.runner, others)), loaded.ready


def exchange_in_process_group(widths: tuple[int, ...], dtype: torch.dtype) -> list[Exchanged]:
    """Exchanges random numbers among as many ranks as there are widths; returns what each has of them."""
    others = [_worker(number) for number in range(1, len(widths))]
    with _places(len(widths), in_process_group=True) as (first, *places):
        for other, place in zip(others, places, strict=True):
            other.send(Exchange(place, widths, dtype))
        own = exchange(Exchange(first, widths, dtype))
        return [own, *(other.recv() for other in others)]


@contextmanager
def _places(ranks: int, in_process_group: bool) -> Iterator[list[RankPlace]]:
    """The places of ranks, whose file exists in the context."""
    with tempfile.NamedTemporaryFile() as file:
        yield [RankPlace(Rank(number, ranks), file.name, in_process_group) for number in range(ranks)]
