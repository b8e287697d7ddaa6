"""A request's constraint: its grammar's state, masks and forced text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ...grammars import (
    CHOICE,
    Automaton,
    CompilerError,
    ForcedText,
    GrammarError,
    HostMatcher,
    forced_text,
)
from ..automaton_format import DEAD

Spelled = Callable[[NDArray[np.int32]], bytes]
"""function that returns the bytes of tokens [n]"""


class DeviceState(NamedTuple):
    """The state of a loaded automaton."""

    grammar: int  # id of the grammar
    state: int
    stack: bytes  # packed int32, bottom first


class Constraint(Protocol):
    host_masked: bool  # whether the host sends a mask with each step; otherwise the device has the masks
    left_out: Sequence[tuple[str, str]]  # (keyword, path) of each schema keyword that is not enforced

    def is_ready(self, within_s: float) -> bool:
        """Whether the other methods return at once. Waits up to `within_s` seconds for that. Until then no
        step samples for the request."""

    def device_state(self) -> DeviceState | None:
        """The automaton's state after the accepted tokens; None without an automaton."""

    def forced_text(self) -> ForcedText | None:
        """The text that must come next; None if unknown."""

    def closing_bytes(self, tokens: Sequence[int]) -> int | None:
        """An upper bound for the bytes of the closing text after `tokens`; None if unknown."""

    def closing_text(self, tokens: Sequence[int]) -> bytes | None:
        """The shortest text that ends the reply after `tokens`; None if unknown."""

    def expect(self, token: int) -> None:
        """Announces a token that will be accepted, so that the grammar's process can step over it now."""

    def accept(self, token: int, state: int) -> GrammarError | CompilerError | None:
        """Accepts a sampled token, after which the device is in `state`. Returns the error, if any."""

    def append(self, tokens: Sequence[int]) -> None:
        """Accepts forced tokens."""

    def fill_mask(self, mask: NDArray[np.int32]) -> None:
        """Writes the next token's mask, int32 [ceil(vocab / 32)]. Call it only if `host_masked`."""


class AutomatonConstraint:
    """An automaton that the device masks and steps. The host steps it only to force or close text, or to set
    up a slot."""

    host_masked = False

    def __init__(self, automaton: Automaton, spelled: Spelled) -> None:
        self.grammar: int | None = None  # id of the automaton while it is loaded for this request
        self.automaton = automaton
        self.left_out: Sequence[tuple[str, str]] = automaton.left_out
        self._spelled = spelled
        self._unread: list[int] = []  # accepted tokens that `_state` and `_stack` do not include yet
        self._state = automaton.machine.start
        self._stack = list(automaton.machine.bottom)
        self._on_device = self._state  # the device's state after the last accepted token

    def is_ready(self, within_s: float) -> bool:
        return True

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
        state, stack = self._after(tokens)
        return None if state == DEAD else self.automaton.closing.length(state, stack)

    def closing_text(self, tokens: Sequence[int]) -> bytes | None:
        state, stack = self._after(tokens)
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

    def _after(self, tokens: Sequence[int]) -> tuple[int, list[int]]:
        """The automaton's state and stack after tokens that are not accepted yet."""
        self._read()
        stack, text = list(self._stack), self._spelled(np.array(tokens, np.int32))
        return self.automaton.machine.walk(self._state, stack, text), stack

    def _read(self) -> None:
        text = self._spelled(np.array(self._unread, np.int32))
        self._state = self.automaton.machine.walk(self._state, self._stack, text)
        self._unread = []


class MatcherConstraint:
    """A matcher in the grammar's own process, which steps over the accepted tokens and makes the masks."""

    host_masked = True

    def __init__(self, matcher: HostMatcher, left_out: Sequence[tuple[str, str]] = ()) -> None:
        self.left_out = left_out
        self._matcher = matcher

    def is_ready(self, within_s: float) -> bool:
        return self._matcher.is_ready(within_s)

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
