"""Limits how long the scheduler's loop waits for grammars' processes."""

from __future__ import annotations

import time
from collections.abc import Callable

from .request import Request

TURN_S = 0.05  # per turn of the loop, for all processes together; an answer usually takes 0.0001


class WaitBudget:
    """The time that one turn of the loop may still wait."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left_s = TURN_S

    def renew(self) -> None:
        """The next turn of the loop begins."""
        self._left_s = TURN_S

    def is_ready(self, request: Request) -> bool:
        """Whether the request's constraint can be used now. Waits for that while time is left."""
        if request.constraint is None:
            return True
        began = self._clock()
        is_ready = request.constraint.is_ready(self._left_s)
        self._left_s = max(0.0, self._left_s - (self._clock() - began))
        return is_ready
