"""Loads a model as several ranks: the first one in this process, the others in processes that all tests
share."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from multiprocessing.connection import Connection
from typing import cast

from arbora.runtime.config import ServeConfig
from arbora.runtime.messages import ForgetReplies, ModelReady, StepPlan, StepResult
from arbora.runtime.model.loading import load_model
from arbora.runtime.model.ranks import Rank, RanksOnHost
from arbora.runtime.model.runner import Runner
from arbora.runtime.model.running_step import MasksSource
from rank_worker import LoadRank
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


def load_ranks(config: ServeConfig) -> tuple[Runner, ModelReady]:
    """Loads all ranks of a model."""
    if config.tp == 1:
        loaded = load_model(config, no_vocabulary)
        return loaded.runner, loaded.ready
    others = [_worker(number) for number in range(1, config.tp)]
    with tempfile.NamedTemporaryFile() as file:
        for number, other in enumerate(others, start=1):
            other.send(LoadRank(config, Rank(number, config.tp), file.name))
        try:
            loaded = load_model(config, no_vocabulary, RanksOnHost(Rank(0, config.tp), file.fileno()))
        finally:
            answers = [other.recv() for other in others]
    assert not any(answers), answers
    return cast(Runner, RankedRunner(loaded.runner, others)), loaded.ready
