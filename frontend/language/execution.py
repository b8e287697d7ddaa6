"""Runs the statements of a program on a backend, in the background."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, InvalidStateError, wait
from typing import Any

import msgspec

from ..engine.completion import ToolCall
from ..engine.typed import describe_mismatch
from .backend import Backend, Lease, OnText, Reply, Scores
from .background import submit, wait_for_at_exit
from .errors import ProgramError
from .expressions import Expression, Gen, Joined, Select, Text, ToolAnswer, Turn
from .state import Outcome, State
from .statements import Statement
from .trace import Call, Trace
from .transcript import Transcript

OnPart = Callable[[str, str], None]
"""Takes the name of a call and a piece of its text."""


SESSION_S = 300.0  # for so long the cache keeps a call's prompt and reply, so that the next calls find them
MAX_BRANCHES = 64  # at most so many branches of the cache are leased for one program
_CANCELLED = "a call for which this waits was cancelled."


class CallOutcome(msgspec.Struct, frozen=True):
    value: Any
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str = ""
    reasoning: str = ""
    scores: Mapping[str, float] = {}


class Execution:
    """One run of one program. `on_part` gets the text of named calls as it arrives. `is_async`: the program
    runs in an event loop, which no read may block."""

    def __init__(self, backend: Backend, on_part: OnPart | None = None, *, is_async: bool = False) -> None:
        self._backend = backend
        self._on_part = on_part
        self._is_async = is_async
        self._is_cancelled = False
        self._begun = time.monotonic()
        self._calls: list[Call] = []
        self._session = f"program-{secrets.token_hex(16)}"
        self._salts: set[str | None] = set()  # of its calls
        self._running: dict[Future[Transcript], tuple[int, ...]] = {}  # with the branch of each

    def first_state(self) -> State:
        empty: Future[Transcript] = Future()
        empty.set_result(Transcript())
        return State(self, empty, {})

    @property
    def trace(self) -> Trace:
        """The calls that have ended."""
        return Trace(list(self._calls))

    def append(
        self, before: Future[Transcript], added: Expression, branch: tuple[int, ...], statement: Statement
    ) -> tuple[Future[Transcript], dict[str, Future[Outcome]]]:
        """Cancelling an outcome cancels the statement, and those of the same branch for which it waits."""
        outcomes: dict[str, Future[Outcome]] = {
            call.name: Future() for call in added.calls() if call.name is not None
        }
        run = _Appending(self, branch, statement, outcomes)
        after = submit(run.append(before, added, is_inherited=self._running.get(before) != branch))
        for outcome in outcomes.values():
            outcome.add_done_callback(lambda done: done.cancelled() and after.cancel())
        self._running[after] = branch
        self._stop_if_cancelled()
        return after, outcomes

    def read(self, future: Future[Any], statement: Statement) -> Any:
        """Waits for the result. Raises `ProgramError` if that would block an async program's event loop."""
        if self._is_async and not future.done() and _in_event_loop():
            raise ProgramError(
                f"{statement}: this value is not there yet, and waiting here would stop the event loop. In "
                "an async program write `await state.value(name)` or `await state.finished()` first."
            )
        try:
            return future.result()
        except CancelledError:
            self._stop_if_cancelled()
            raise ProgramError(f"{statement}: {_CANCELLED}") from None
        except ProgramError:
            self._stop_if_cancelled()
            raise

    wait = read

    async def arrived(self, future: Future[Any], statement: Statement) -> Any:
        """Cancelling this wait cancels the call."""
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            self._stop_if_cancelled()
            raise ProgramError(f"{statement}: {_CANCELLED}") from None

    waited = arrived

    def wait_for_all(self) -> None:
        """Waits for all that was appended to any state. Raises the first error as soon as it occurs. A
        statement that the program cancelled is none."""
        wait(list(self._running), return_when=FIRST_EXCEPTION)
        self._raise_first_error()

    async def finished(self) -> None:
        """As `wait_for_all`, in an event loop."""
        if running := [asyncio.wrap_future(future) for future in self._running]:
            for future in running:  # so that asyncio logs no error as one that was never raised
                future.add_done_callback(lambda done: done.cancelled() or done.exception())
            await asyncio.wait(running, return_when=asyncio.FIRST_EXCEPTION)
        self._raise_first_error()

    def cancel(self) -> None:
        """Ends all calls. The program's function ends at its next statement or read."""
        self._is_cancelled = True
        for future in list(self._running):
            future.cancel()

    def end_session(self) -> None:
        """Lets the backend evict the program's prefixes, in the background; without this they stay for
        `SESSION_S`."""
        for salt in self._salts:
            wait_for_at_exit(submit(self._backend.end_session(self._session, salt)))
        self._salts.clear()

    def _raise_first_error(self) -> None:
        self._stop_if_cancelled()
        for future in self._running:
            if future.done() and not future.cancelled():
                future.result()

    def _stop_if_cancelled(self) -> None:
        """Raises `asyncio.CancelledError`, which no `except Exception` of the program takes."""
        if self._is_cancelled:
            self.cancel()
            raise asyncio.CancelledError("the program was cancelled")

    async def reply(self, gen: Gen, transcript: Transcript) -> Reply:
        on_text: OnText | None = None
        if self._on_part is not None and gen.name is not None:
            name, on_part = gen.name, self._on_part
            on_text = lambda text: on_part(name, text)  # noqa: E731
        sampling = {"cache_lease": self._lease(gen.sampling.get("cache_salt")), **gen.sampling}
        return await self._backend.reply(transcript.prompt(), sampling, on_text)

    async def score(self, select: Select, transcript: Transcript) -> Scores:
        return await self._backend.score(transcript.prompt(), select.choices, self._lease(None))

    def _lease(self, salt: str | None) -> Lease:
        """The session's lease for a call with this `cache_salt`."""
        self._salts.add(salt)
        return {"key": self._session, "ttl_s": SESSION_S, "most": MAX_BRANCHES}

    def tell(self, name: str | None, text: str) -> None:
        """Reports the text of a call that does not arrive in pieces."""
        if self._on_part is not None and name is not None:
            self._on_part(name, text)

    def now(self) -> float:
        return time.monotonic() - self._begun

    def record(self, call: Call) -> None:
        self._calls.append(call)


class _Appending:
    """Runs one statement's expression, which continues a transcript."""

    def __init__(
        self,
        execution: Execution,
        branch: tuple[int, ...],
        statement: Statement,
        outcomes: dict[str, Future[Outcome]],
    ) -> None:
        self._execution = execution
        self._branch = branch
        self._statement = statement
        self._outcomes = outcomes

    async def append(
        self, before: Future[Transcript], added: Expression, *, is_inherited: bool
    ) -> Transcript:
        """Raises `ProgramError`, also through the outcomes that are still open. An inherited transcript
        belongs to other forks too, so it is not cancelled with this statement."""
        try:
            inherited = asyncio.wrap_future(before)
            transcript = await (asyncio.shield(inherited) if is_inherited else inherited)
            return await self._run(added, transcript)
        except asyncio.CancelledError:
            self._fail(ProgramError(f"{self._statement}: the call was cancelled."))
            raise
        except ProgramError as error:
            self._fail(error)
            raise
        except Exception as error:
            failure = ProgramError(f"{self._statement}: {error}")
            self._fail(failure)
            raise failure from error

    async def _run(self, added: Expression, transcript: Transcript) -> Transcript:
        match added:
            case Text(text):
                return transcript.add(text)
            case Joined(parts):
                for part in parts:
                    transcript = await self._run(part, transcript)
                return transcript
            case Turn(role, body):
                return (await self._run(body, transcript.open(role))).close()
            case ToolAnswer(call_id, content):
                return transcript.answer_tool(call_id, content)
            case Gen():
                return await self._generate(added, transcript)
            case Select():
                return await self._select(added, transcript)
        raise TypeError(f"{added!r} can't be run")

    async def _generate(self, gen: Gen, transcript: Transcript) -> Transcript:
        begun = self._execution.now()
        reply = await self._execution.reply(gen, transcript)
        self._execution.record(
            Call(
                statement=str(self._statement),
                kind="gen",
                name=gen.name,
                branch=self._branch,
                text=reply.text,
                begun=begun,
                ended=self._execution.now(),
                prompt_tokens=reply.prompt_tokens,
                cached_tokens=reply.cached_tokens,
                completion_tokens=reply.completion_tokens,
                finish_reason=reply.finish_reason,
            )
        )
        value = _value(gen, reply)
        self._succeed(gen.name, CallOutcome(value, reply.tool_calls, reply.finish_reason, reply.reasoning))
        return transcript.add(reply.text).add_calls(reply.tool_calls)

    async def _select(self, select: Select, transcript: Transcript) -> Transcript:
        begun = self._execution.now()
        result = await self._execution.score(select, transcript)
        means = (score.mean for score in result.scores)
        scores = dict(zip(select.choices, means, strict=True))
        choice = max(scores, key=scores.__getitem__)
        self._execution.record(
            Call(
                statement=str(self._statement),
                kind="select",
                name=select.name,
                branch=self._branch,
                text=choice,
                begun=begun,
                ended=self._execution.now(),
                prompt_tokens=result.prompt_tokens,
                cached_tokens=result.cached_tokens,
                scores=scores,
            )
        )
        self._execution.tell(select.name, choice)
        self._succeed(select.name, CallOutcome(choice, scores=scores))
        return transcript.add(choice)

    def _succeed(self, name: str | None, outcome: CallOutcome) -> None:
        if name is not None:
            with contextlib.suppress(InvalidStateError):  # cancelled meanwhile
                self._outcomes[name].set_result(outcome)

    def _fail(self, error: ProgramError) -> None:
        for outcome in self._outcomes.values():
            with contextlib.suppress(InvalidStateError):  # set or cancelled before
                outcome.set_exception(error)


def _value(gen: Gen, reply: Reply) -> object:
    """Raises ValueError for a text that is no value of the type."""
    if reply.tool_calls and gen.read is not str:
        return None
    try:
        return gen.read(reply.text)
    except ValueError as error:  # msgspec's and pydantic's errors too
        name = "the reply" if gen.name is None else f"the reply {gen.name!r}"
        raise ValueError(describe_mismatch(name, reply.text, reply.finish_reason, error)) from error


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
