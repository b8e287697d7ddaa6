"""A rank of a model, which runs the plans that the tests' process sends it.

    python -c "import rank_worker; rank_worker.main()" DESCRIPTOR

The descriptor is that of a socket, over which come `LoadRank`, plans and other messages. Each is answered: a
plan with its result, and a refusal to load with its text.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import NamedTuple

from arbora.runtime.config import ServeConfig
from arbora.runtime.errors import ConfigError
from arbora.runtime.messages import ForgetReplies, StepPlan
from arbora.runtime.model.loading import load_model
from arbora.runtime.model.ranks import Rank, RanksOnHost
from arbora.runtime.model.runner import Runner
from step_driver import no_masks, no_vocabulary


class LoadRank(NamedTuple):
    config: ServeConfig
    rank: Rank
    memory: str
    """path of the file that the ranks share"""


def load(order: LoadRank) -> Runner:
    with open(order.memory, "r+b") as file:
        return load_model(order.config, no_vocabulary, RanksOnHost(order.rank, file.fileno())).runner


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
