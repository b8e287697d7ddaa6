"""What binds one request's output to its grammar, and where its mask comes from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ...grammars import (
    CHOICE,
    DEAD,
    Automaton,
    CompilerError,
    ForcedText,
    GrammarError,
    HostMatcher,
    forced_text,
)

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

    def device_state(self) -> DeviceState | None:
        """Where the automaton stands after what was kept; None without one."""

    def forced_text(self) -> ForcedText | None:
        """What must come next, if that is known."""

    def closing_bytes(self, tokens: Sequence[int]) -> int | None:
        """How many bytes the closing text has behind `tokens`, as far as that is known."""

    def closing_text(self, tokens: Sequence[int]) -> bytes | None:
        """The shortest text that ends the reply behind `tokens`; None if that isn't known."""

    def expect(self, token: int) -> None:
        """A token that is about to be accepted: what is done elsewhere for it begins."""

    def accept(self, token: int, state: int) -> GrammarError | CompilerError | None:
        """Follow a kept token, after which the device is in `state`. Returns why that failed, if it did."""

    def append(self, tokens: Sequence[int]) -> None:
        """Tokens that were not sampled but had to come."""

    def fill_mask(self, mask: NDArray[np.int32]) -> None:
        """Writes the next token's mask, int32 [ceil(vocab / 32)]; only of a `host_masked` one."""


class AutomatonConstraint:
    """Masked and advanced on the device. The host steps it only where text is forced, or a row begins again.

    `_unread` are the kept tokens that `_state` and `_stack` don't know yet.
    `grammar` is the automaton's id while it is loaded for a request that runs.
    """

    host_masked = False

    def __init__(self, automaton: Automaton, spelled: Spelled) -> None:
        self.grammar: int | None = None
        self.automaton = automaton
        self.left_out: Sequence[tuple[str, str]] = automaton.left_out
        self._spelled = spelled
        self._unread: list[int] = []
        self._state = automaton.machine.start
        self._stack: list[int] = []
        self._on_device = self._state

    def device_state(self) -> DeviceState | None:
        assert self.grammar is not None, "the automaton is not loaded"
        self._read()
        return DeviceState(self.grammar, self._state, np.array(self._stack, np.int32).tobytes())

    def forced_text(self) -> ForcedText | None:
        if self.automaton.forced[self._on_device] == CHOICE:
            return None
        self._read()
        return forced_text(self.automaton.machine, self.automaton.forced, self._state, self._stack)

    def closing_bytes(self, tokens: Sequence[int]) -> int | None:
        state, stack = self._behind(tokens)
        return None if state == DEAD else self.automaton.closing.length(state, stack)

    def closing_text(self, tokens: Sequence[int]) -> bytes | None:
        state, stack = self._behind(tokens)
        return None if state == DEAD else self.automaton.closing.text(state, stack)

    def expect(self, token: int) -> None:
        pass

    def accept(self, token: int, state: int) -> CompilerError | None:
        self._unread.append(token)
        self._on_device = state
        return CompilerError("the output left its grammar") if state == DEAD else None

    def append(self, tokens: Sequence[int]) -> None:
        self._unread += tokens
        self._read()
        self._on_device = self._state

    def fill_mask(self, mask: NDArray[np.int32]) -> None:
        raise AssertionError("the device has the mask")

    def _behind(self, tokens: Sequence[int]) -> tuple[int, list[int]]:
        """State and stack behind tokens that may still come."""
        self._read()
        stack, text = list(self._stack), self._spelled(np.array(tokens, np.int32))
        return self.automaton.machine.walk(self._state, stack, text), stack

    def _read(self) -> None:
        text = self._spelled(np.array(self._unread, np.int32))
        self._state = self.automaton.machine.walk(self._state, self._stack, text)
        self._unread = []


class MatcherConstraint:
    """Masked by a process of its grammar's, which follows the tokens that were kept."""

    host_masked = True

    def __init__(self, matcher: HostMatcher, left_out: Sequence[tuple[str, str]] = ()) -> None:
        self.left_out = left_out
        self._matcher = matcher

    def device_state(self) -> DeviceState | None:
        return None

    def forced_text(self) -> ForcedText | None:
        return self._matcher.forced_text()

    def closing_bytes(self, tokens: Sequence[int]) -> int | None:
        return None

    def closing_text(self, tokens: Sequence[int]) -> bytes | None:
        return None

    def expect(self, token: int) -> None:
        self._matcher.begin(token)

    def accept(self, token: int, state: int) -> GrammarError | CompilerError | None:
        return self._matcher.consume(token)

    def append(self, tokens: Sequence[int]) -> None:
        self._matcher.append(tokens)

    def fill_mask(self, mask: NDArray[np.int32]) -> None:
        self._matcher.fill_mask(mask)
