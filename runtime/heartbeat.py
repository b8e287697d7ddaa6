"""A replica's sign of life: its supervisor hears every second how its main loop gets on."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import zmq

from .awake_clock import AwakeClock
from .child import SIGN_OF_LIFE_S, ChildArguments
from .messages import Alive
from .sockets import Outbox, supervisor_address


class Heartbeat:
    """The main loop calls `working` when it has something to do, `progress` while a long operation gets on
    and `resting` before it waits for messages.

    A thread with a socket of its own reports, so that a long operation is told apart from a stopped process.
    Before the first `working`, while the process loads, nothing counts as stalled. Time in which the process
    was frozen, for example with its container or machine, does not count either.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._awake = AwakeClock(2 * SIGN_OF_LIFE_S, clock())  # only the thread that reports moves it on
        self._progress_at: float | None = None  # in its seconds; None: at rest

    def working(self) -> None:
        self._progress_at = self._awake.time

    def progress(self) -> None:
        if self._progress_at is not None:
            self._progress_at = self._awake.time

    def resting(self) -> None:
        self._progress_at = None

    def stalled_s(self) -> float:
        """Seconds since the main loop's last progress, or since the report before that; 0 at rest."""
        now, progress_at = self._awake.tick(self._clock()), self._progress_at
        return 0.0 if progress_at is None else max(0.0, now - progress_at)

    def start(self, arguments: ChildArguments) -> None:
        threading.Thread(target=self._report, args=(arguments,), name="heartbeat", daemon=True).start()

    def _report(self, arguments: ChildArguments) -> None:
        """In a context of its own: the main thread may end its context while this thread goes on."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        supervisor = Outbox(context, supervisor_address(arguments.directory), arguments.epoch)
        while True:
            supervisor.send(Alive(os.getpid(), self.stalled_s()))
            time.sleep(SIGN_OF_LIFE_S)
