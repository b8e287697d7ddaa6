"""Simulates a group of replicas in another process."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from ...runtime.errors import ConfigError
from ...runtime.processes.garbage import leave_out_existing_objects
from .replica import Replica, Shape
from .replica_group import News, Progress, ReplicaGroup, Sent
from .step_cost import Cost


class GroupProcess:
    """Computes like a `ReplicaGroup` while the caller goes on. It ends with the caller's process."""

    def __init__(self, shape: Shape, cost: Cost, numbers: Iterable[int]) -> None:
        """numbers: those of the replicas to simulate"""
        context = get_context("spawn")
        self._connection, other_end = context.Pipe()
        arguments = (other_end, shape, cost, tuple(numbers))
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        other_end.close()

    def begin(self, sent: Sequence[Sent], end: float) -> None:
        """Begins to advance the replicas; see `ReplicaGroup.advance`."""
        self._exchange(self._connection.send, (sent, end))

    def collect(self) -> list[News]:
        """Waits until the replicas are advanced. Returns their messages to the router."""
        news: list[News] = self._exchange(self._connection.recv)
        return news

    def finish(self) -> Progress:
        """Ends the process."""
        self._exchange(self._connection.send, None)
        progress: Progress = self._exchange(self._connection.recv)
        self._connection.close()
        self._process.join()
        return progress

    def _exchange(self, act: Any, *arguments: object) -> Any:
        try:
            return act(*arguments)
        except (EOFError, OSError):
            self._process.join()
            raise ConfigError(
                f"--fleet: a process that simulates replicas has ended with {self._process.exitcode}, "
                "perhaps for lack of memory. Lower --requests or --replicas."
            ) from None


def _serve(connection: Connection, shape: Shape, cost: Cost, numbers: Sequence[int]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends this one
    group = ReplicaGroup({number: Replica(shape, cost, is_watched=True) for number in numbers})
    leave_out_existing_objects()
    while (order := connection.recv()) is not None:
        connection.send(group.advance(*order))
    connection.send(group.find_progress())
