"""Decides when to start a dead child again, and when to give up. It takes times and returns delays."""

from __future__ import annotations

import signal

MAX_FAILURES = 5
WINDOW_SECONDS = 60.0
SETTLED_SECONDS = 5.0
FIRST_DELAY_SECONDS = 0.25
_FROM_OUTSIDE = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP, -signal.SIGQUIT}


class Restarts:
    """The restart policy of one failure domain.

    A death counts as a failure if it came before the child was ready, or within `SETTLED_SECONDS` after by a
    crash of the child itself, not by a signal from outside. Any other death clears the record, and the child
    starts again at once. After failures the delay grows; the fifth within `WINDOW_SECONDS` ends the server.
    """

    def __init__(self) -> None:
        self._failures: list[float] = []

    def delay_after(self, now: float, ready_at: float | None, returncode: int) -> float | None:
        """Seconds until the next start, None to give up. `ready_at` is None if the child was never ready."""
        if ready_at is not None and (now - ready_at >= SETTLED_SECONDS or returncode in _FROM_OUTSIDE):
            self._failures.clear()
            return 0.0
        self._failures = [time for time in self._failures if now - time < WINDOW_SECONDS]
        self._failures.append(now)
        if len(self._failures) >= MAX_FAILURES:
            return None
        return FIRST_DELAY_SECONDS * float(2 ** (len(self._failures) - 1))
