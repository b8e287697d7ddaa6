"""What binds one request's output to its grammar, and where its mask comes from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ...grammars import DEAD, Automaton, HostMatcher
from ..messages import Tokens

Spelled = Callable[[NDArray[np.int32]], bytes]
"""what tokens [n] are in bytes"""


class DeviceState(NamedTuple):
    """Where a loaded automaton stands: its state, and what it pushed and not popped, packed int32."""

    grammar: int
    state: int
    stack: bytes


class Constraint(Protocol):
    """`host_masked`: the mask travels with each step; else the sampling kernel has it on the device.

    `left_out`: keyword and path of what the schema asks beyond it.
    """

    host_masked: bool
    left_out: Sequence[tuple[str, str]]

    @property
    def grammar(self) -> int | None:
        """The loaded automaton's id."""

    def device_state(self, output: Tokens) -> DeviceState | None:
        """Where the automaton stands after `output`; None without one."""

    def accept(self, token: int, state: int) -> str | None:
        """A kept token, and the state after it as the device says. Returns an error's message, if any."""

    def fill_mask(self, mask: NDArray[np.int32]) -> None:
        """Writes the next token's mask, int32 [ceil(vocab / 32)]; only of a `host_masked` one."""


class AutomatonConstraint:
    """Masked and advanced on the device. The host steps it only for a row that begins or begins again."""

    host_masked = False

    def __init__(self, grammar: int, automaton: Automaton, spelled: Spelled) -> None:
        self.grammar = grammar
        self.left_out: Sequence[tuple[str, str]] = automaton.left_out
        self._automaton = automaton
        self._spelled = spelled

    def device_state(self, output: Tokens) -> DeviceState | None:
        state, stack = self._automaton.after(self._spelled(np.frombuffer(output, np.int32)))
        return DeviceState(self.grammar, state, np.array(stack, np.int32).tobytes())

    def accept(self, token: int, state: int) -> str | None:
        return "the output left its grammar" if state == DEAD else None

    def fill_mask(self, mask: NDArray[np.int32]) -> None:
        raise AssertionError("the device has the mask")


class MatcherConstraint:
    """Masked by the host, which follows the tokens that were kept."""

    host_masked = True
    grammar = None

    def __init__(self, matcher: HostMatcher, left_out: Sequence[tuple[str, str]] = ()) -> None:
        self.left_out = left_out
        self._matcher = matcher

    def device_state(self, output: Tokens) -> DeviceState | None:
        return None

    def accept(self, token: int, state: int) -> str | None:
        return self._matcher.consume(token)

    def fill_mask(self, mask: NDArray[np.int32]) -> None:
        self._matcher.fill_mask(mask)
