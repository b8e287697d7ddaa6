"""What binds one request's output to its grammar, and where its mask comes from."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...grammars import HostMatcher


class Constraint(Protocol):
    """`host_masked`: the mask travels with each step; else the sampling kernel has it on the device."""

    host_masked: bool

    def device_state(self) -> tuple[int | None, int]:
        """The loaded automaton's id and the state before the next token; (None, 0) without one."""

    def accept(self, token: int, state: int) -> str | None:
        """A kept token, and the state after it as the device says. Returns an error's message, if any."""

    def fill_mask(self, mask: NDArray[np.int32]) -> None:
        """Writes the next token's mask, int32 [ceil(vocab / 32)]; only of a `host_masked` one."""


class AutomatonConstraint:
    """Masked and advanced on the device; the host only remembers the state, for a retraction."""

    host_masked = False

    def __init__(self, grammar: int, start: int) -> None:
        self.grammar = grammar
        self._state = start

    def device_state(self) -> tuple[int | None, int]:
        return self.grammar, self._state

    def accept(self, token: int, state: int) -> str | None:
        self._state = state
        return None

    def fill_mask(self, mask: NDArray[np.int32]) -> None:
        raise AssertionError("the device has the mask")


class MatcherConstraint:
    """Masked by the host, which follows the tokens that were kept."""

    host_masked = True

    def __init__(self, matcher: HostMatcher) -> None:
        self._matcher = matcher

    def device_state(self) -> tuple[int | None, int]:
        return None, 0

    def accept(self, token: int, state: int) -> str | None:
        return self._matcher.consume(token)

    def fill_mask(self, mask: NDArray[np.int32]) -> None:
        self._matcher.fill_mask(mask)
