"""The state of a running program: its text or chat so far, and the values of its calls."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, overload

import msgspec

from ..core.text.close_names import did_you_mean
from ..engine.completion import ToolCall
from .backend import Reply
from .errors import Statement, UnknownNameError, current_statement
from .expressions import Expression, join
from .trace import Trace
from .transcript import Message, Transcript


class Outcome(msgspec.Struct, frozen=True):
    """A call's value and reply. `scores` has the mean log-probability of each choice of a `select`."""

    value: Any
    reply: Reply
    scores: Mapping[str, float] = {}


class Executor(Protocol):
    """Runs the expressions that are appended to states."""

    def append(
        self, before: Future[Transcript], added: Expression, branch: tuple[int, ...], statement: Statement
    ) -> tuple[Future[Transcript], dict[str, Future[Outcome]]]:
        """Begins to run an expression after a transcript. Returns the transcript with it, and the outcome of
        each named call."""

    def read(self, future: Future[Any], statement: Statement) -> Any:
        """Waits for a result."""

    def wait(self, future: Future[Any], statement: Statement) -> None:
        """Waits until a result has arrived, and ignores it."""

    async def arrived(self, future: Future[Any], statement: Statement) -> Any:
        """As `read`, in an event loop."""

    async def waited(self, future: Future[Any], statement: Statement) -> None:
        """As `wait`, in an event loop."""


class State:
    """A text or a chat that grows by `+=`. Calls run in the background; calls of one state run in order.
    Reading a value waits for it. `fork` makes copies that run side by side and share the prefix."""

    def __init__(
        self,
        executor: Executor,
        transcript: Future[Transcript],
        outcomes: dict[str, Future[Outcome]],
        branch: tuple[int, ...] = (),
    ) -> None:
        self._executor = executor
        self._transcript = transcript
        self._outcomes = outcomes
        self._branch = branch
        self._forked = 0

    def __iadd__(self, added: Expression | str) -> State:
        statement = current_statement()
        self._transcript, named = self._executor.append(
            self._transcript, join([added]), self._branch, statement
        )
        self._outcomes.update(named)
        return self

    def __getitem__(self, name: str) -> Any:
        """The value of the call with this name. In an async program: `await state.value(name)`."""
        return self._read(name).value

    def __contains__(self, name: str) -> bool:
        return name in self._outcomes

    def tool_calls(self, name: str) -> tuple[ToolCall, ...]:
        """The functions that the model calls in this reply."""
        return self._read(name).reply.tool_calls

    def finish_reason(self, name: str) -> str:
        """Why this reply ended, such as "stop", "length" or "tool_calls". Empty for a `select`."""
        return self._read(name).reply.finish_reason

    def reasoning(self, name: str) -> str:
        """A reasoning model's text before this reply."""
        return self._read(name).reply.reasoning

    def scores(self, name: str) -> dict[str, float]:
        """The mean log-probability of a token of each choice of this `select`. Empty for a `gen`."""
        return dict(self._read(name).scores)

    def value(self, name: str) -> Coroutine[Any, Any, Any]:
        """As `state[name]`, in an async program. A timeout around it cancels the call."""
        return self._value(self._outcome(name), current_statement())

    def text(self) -> str:
        """The state's whole text, with the roles of a chat's turns."""
        return str(self._executor.read(self._transcript, current_statement()))

    def messages(self) -> list[Message]:
        """A chat's messages, as the HTTP API takes them."""
        transcript: Transcript = self._executor.read(self._transcript, current_statement())
        return list(transcript.messages)

    def wait(self) -> None:
        """Waits until all appended expressions have run. Raises the error of a failed statement."""
        self._executor.wait(self._transcript, current_statement())

    def finished(self) -> Coroutine[Any, Any, None]:
        """As `wait`, in an async program."""
        return self._executor.waited(self._transcript, current_statement())

    def fork(self, count: int = 2) -> Forks:
        """Returns copies of this state, which begin with its text so far."""
        if count < 1:
            raise ValueError(f"fork({count}): there must be at least one.")
        first, self._forked = self._forked, self._forked + count
        return Forks(
            State(self._executor, self._transcript, dict(self._outcomes), (*self._branch, number))
            for number in range(first, first + count)
        )

    async def _value(self, outcome: Future[Outcome], statement: Statement) -> Any:
        return (await self._executor.arrived(outcome, statement)).value

    def _read(self, name: str) -> Outcome:
        outcome: Outcome = self._executor.read(self._outcome(name), current_statement())
        return outcome

    def _outcome(self, name: str) -> Future[Outcome]:
        if name not in self._outcomes:
            known = ", ".join(self._outcomes) or "none"
            hint = did_you_mean(name, self._outcomes)
            raise UnknownNameError(
                f"{current_statement()}: no call is named {name!r}.{hint} Named so far: {known}."
            )
        return self._outcomes[name]


class FinishedState(State):
    """The state of a finished program, with its trace and its function's return value."""

    trace: Trace
    result: Any

    @property
    def names(self) -> list[str]:
        """The names of its calls, in the order in which they were appended."""
        return list(self._outcomes)


class Forks(Sequence[State]):
    """The copies that `fork` makes."""

    def __init__(self, states: Iterator[State]) -> None:
        self._states = list(states)

    def __len__(self) -> int:
        return len(self._states)

    @overload
    def __getitem__(self, key: int) -> State: ...
    @overload
    def __getitem__(self, key: slice) -> list[State]: ...
    @overload
    def __getitem__(self, key: str) -> list[Any]: ...
    def __getitem__(self, key: int | slice | str) -> Any:
        """A copy, by its number, or a list of the values of a call, by the call's name."""
        return [state[key] for state in self._states] if isinstance(key, str) else self._states[key]

    def __setitem__(self, number: int, state: State) -> None:
        """Makes `forks[0] += …` work."""
        self._states[number] = state

    def __iadd__(self, added: Expression | str) -> Forks:
        """Appends the same expression to each copy."""
        for state in self._states:
            state += added
        return self

    def values(self, name: str) -> Coroutine[Any, Any, list[Any]]:
        """As `forks[name]`, in an async program."""
        outcomes = [state._outcome(name) for state in self._states]
        return self._values(outcomes, current_statement())

    def join(self) -> Forks:
        """Waits until every copy has finished. Raises the error of a failed statement."""
        for state in self._states:
            state.wait()
        return self

    async def _values(self, outcomes: Sequence[Future[Outcome]], statement: Statement) -> list[Any]:
        values = zip(self._states, outcomes, strict=True)
        return await asyncio.gather(*(state._value(outcome, statement) for state, outcome in values))
