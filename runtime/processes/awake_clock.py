"""A clock that stops while its process does not run."""

from __future__ import annotations


class AwakeClock:
    """Seconds in which this process ran on time.

    Time in which the machine was suspended, or this process was frozen or waited for the processor, must not
    count as a delay of another process. So at most `most_s` seconds count between two calls of `tick`.
    """

    def __init__(self, most_s: float, now: float) -> None:
        self.time = 0.0
        self._most_s = most_s
        self._last = now

    def tick(self, now: float) -> float:
        self.time += min(now - self._last, self._most_s)
        self._last = now
        return self.time
