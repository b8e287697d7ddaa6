"""The state of a program that has ended."""

from __future__ import annotations

from typing import Any

from .state import State
from .trace import Trace


class FinishedState(State):
    """Has the trace, and what the function returned."""

    trace: Trace
    result: Any

    @property
    def names(self) -> list[str]:
        """The names of its calls, in the order in which they were appended."""
        return list(self._outcomes)
