"""A replica's sign of life: it reports every second whether its main loop makes progress."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import zmq

from ..messages import Alive
from .awake_clock import AwakeClock
from .child import SIGN_OF_LIFE_S, ChildArguments
from .sockets import Outbox, supervisor_address


class Heartbeat:
    """The main loop calls `working` when it has work, `progress` during long operations, and `resting` before
    it waits for messages.

    A separate thread reports, so that the supervisor can distinguish a long operation from a stopped process.
    Nothing counts as stalled before the first `working`, while the process loads, nor while the process was
    frozen, for example with its container or machine.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._awake = AwakeClock(2 * SIGN_OF_LIFE_S, clock())  # read by the reporting thread only
        self._progress_at: float | None = None  # time of the last progress on `_awake`; None: resting

    def working(self) -> None:
        self._progress_at = self._awake.time

    def progress(self) -> None:
        if self._progress_at is not None:
            self._progress_at = self._awake.time

    def resting(self) -> None:
        self._progress_at = None

    def stalled_s(self) -> float:
        """Seconds since the main loop's last progress, or since the last report before; 0 while resting."""
        now, progress_at = self._awake.tick(self._clock()), self._progress_at
        return 0.0 if progress_at is None else max(0.0, now - progress_at)

    def start(self, arguments: ChildArguments) -> None:
        threading.Thread(target=self._report, args=(arguments,), name="heartbeat", daemon=True).start()

    def _report(self, arguments: ChildArguments) -> None:
        """Uses its own context, because the main thread may end its context while this thread runs."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        supervisor = Outbox(context, supervisor_address(arguments.directory), arguments.epoch)
        while True:
            supervisor.send(Alive(os.getpid(), self.stalled_s()))
            time.sleep(SIGN_OF_LIFE_S)
