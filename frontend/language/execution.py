"""Runs the statements of a program on a backend, in the background."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, CancelledError, Future, InvalidStateError, wait
from typing import Any

from ..engine.typed import describe_mismatch
from .backend import Backend, Lease, OnText, Prompt, Reply
from .background import submit, wait_for_at_exit
from .errors import ProgramError, Statement
from .expressions import Expression, Gen, Select
from .state import FinishedState, Outcome, State
from .trace import Call, Trace
from .transcript import Transcript

OnPart = Callable[[str, str], None]
"""Takes the name of a call and a piece of its text."""


SESSION_S = 300.0  # seconds for which the cache keeps a call's prompt and reply for later calls
MAX_BRANCHES = 64  # branches of the cache that are leased for one program
_CANCELLED = "a call for which this waits was cancelled."


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
        self._salts: set[str | None] = set()  # cache salts of its calls
        self._running: dict[Future[Transcript], tuple[int, ...]] = {}  # statements and their branches

    @contextlib.contextmanager
    def begin(self) -> Iterator[State]:
        """The first state. An error inside of the context cancels all calls, and the session ends with it."""
        empty: Future[Transcript] = Future()
        empty.set_result(Transcript())
        try:
            yield State(self, empty, {})
        except BaseException:
            self.cancel()
            raise
        finally:
            self._end_session()

    def finish(self, state: State, result: object) -> FinishedState:
        """The finished first state, once all calls have ended. `result` is the return value of the
        program."""
        finished = FinishedState(self, state._transcript, state._outcomes)
        finished.trace = Trace(list(self._calls))
        finished.result = result
        return finished

    def append(
        self, before: Future[Transcript], added: Expression, branch: tuple[int, ...], statement: Statement
    ) -> tuple[Future[Transcript], dict[str, Future[Outcome]]]:
        """Starts a statement. Cancelling an outcome cancels it and earlier statements of the same branch."""
        outcomes: dict[str, Future[Outcome]] = {
            call.name: Future() for call in added.calls if call.name is not None
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
        """Awaits the call's result. Cancelling the await cancels the call."""
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
        """Waits until all statements of all states have ended. Raises the first error as soon as it occurs. A
        statement that the program cancelled is no error."""
        wait(list(self._running), return_when=FIRST_EXCEPTION)
        self._raise_first_error()

    async def finished(self) -> None:
        """As `wait_for_all`, in an event loop."""
        if running := [asyncio.wrap_future(future) for future in self._running]:
            for future in running:  # reading each error keeps asyncio from logging it
                future.add_done_callback(lambda done: done.cancelled() or done.exception())
            await asyncio.wait(running, return_when=asyncio.FIRST_EXCEPTION)
        self._raise_first_error()

    def cancel(self) -> None:
        """Ends all calls. The program's function ends at its next statement or read."""
        self._is_cancelled = True
        for future in list(self._running):
            future.cancel()

    def _end_session(self) -> None:
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
        """Raises `asyncio.CancelledError` after `cancel`. The program's `except Exception` can't catch it."""
        if self._is_cancelled:
            self.cancel()
            raise asyncio.CancelledError("the program was cancelled")

    async def call(self, call: Gen | Select, prompt: Prompt) -> tuple[Reply, dict[str, float]]:
        """Sends a call. Returns the reply (for a `select` the likeliest choice) and a `select`'s scores."""
        on_text = self._listener(call.name)
        if isinstance(call, Gen):
            sampling = {"cache_lease": self._lease(call.sampling.get("cache_salt")), **call.sampling}
            return await self._backend.reply(prompt, sampling, on_text), {}
        scored = await self._backend.score(prompt, call.choices, self._lease(None))
        scores = dict(zip(call.choices, scored.means, strict=True))
        choice = max(scores, key=scores.__getitem__)
        if on_text is not None:
            on_text(choice)
        return Reply(text=choice, finish_reason="", usage=scored.usage), scores

    def _listener(self, name: str | None) -> OnText | None:
        """The function that receives the text of the call with this name; None if there is none."""
        on_part = self._on_part
        return None if on_part is None or name is None else lambda text: on_part(name, text)

    def _lease(self, salt: str | None) -> Lease:
        """The session's lease for a call with this `cache_salt`."""
        self._salts.add(salt)
        return {"key": self._session, "ttl_s": SESSION_S, "most": MAX_BRANCHES}

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
        """Runs the expression. A failure raises `ProgramError` here and in the outcomes that are still open.
        An inherited transcript belongs to other forks too, so it is not cancelled with this statement."""
        try:
            inherited = asyncio.wrap_future(before)
            transcript = await (asyncio.shield(inherited) if is_inherited else inherited)
            for step in added.steps:
                if isinstance(step, Gen | Select):
                    transcript = await self._call(step, transcript)
                else:
                    transcript = step(transcript)
            return transcript
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

    async def _call(self, call: Gen | Select, transcript: Transcript) -> Transcript:
        begun = self._execution.now()
        reply, scores = await self._execution.call(call, transcript.prompt())
        self._execution.record(
            Call(
                statement=str(self._statement),
                kind="gen" if isinstance(call, Gen) else "select",
                name=call.name,
                branch=self._branch,
                text=reply.text,
                begun=begun,
                ended=self._execution.now(),
                prompt_tokens=reply.usage.prompt_tokens,
                cached_tokens=reply.usage.cached_tokens,
                completion_tokens=reply.usage.completion_tokens,
                finish_reason=reply.finish_reason,
                scores=scores,
            )
        )
        outcome = Outcome(_read_value(call, reply), reply, scores)
        if call.name is not None:
            with contextlib.suppress(InvalidStateError):  # the outcome was cancelled meanwhile
                self._outcomes[call.name].set_result(outcome)
        return transcript.add(reply.text).add_calls(reply.tool_calls)

    def _fail(self, error: ProgramError) -> None:
        for outcome in self._outcomes.values():
            with contextlib.suppress(InvalidStateError):  # the outcome was set or cancelled before
                outcome.set_exception(error)


def _read_value(call: Gen | Select, reply: Reply) -> object:
    """Converts a reply's text to the call's type. Raises ValueError if that fails."""
    if isinstance(call, Select) or call.read is str:
        return reply.text
    if reply.tool_calls:
        return None
    try:
        return call.read(reply.text)
    except ValueError as error:  # also the errors of msgspec and pydantic
        name = "the reply" if call.name is None else f"the reply {call.name!r}"
        raise ValueError(describe_mismatch(name, reply.text, reply.finish_reason, error)) from error


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
