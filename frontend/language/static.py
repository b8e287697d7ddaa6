"""What a program will ask, before anything runs: its prompts up to the first value that it reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import msgspec

from .backend import Prompt, TextPrompt
from .background import run_in_new_loop, submit
from .default_backend import backend_of
from .execution import SESSION_S
from .expressions import Expression, Gen, Joined, Select, Text, ToolAnswer, Turn
from .program import Program
from .state import Outcome, State
from .statements import Statement
from .transcript import Transcript


class KnownCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the program makes whatever the model says. `prompt` is None if it contains an earlier
    reply."""

    statement: str
    kind: str
    name: str | None
    branch: tuple[int, ...]
    prompt: Prompt | None


class Outline:
    """The calls that are known, in the program's order.

    `reads` is the statement at which the program reads a reply: what comes after it depends on that reply.
    None if the program reads none.
    """

    def __init__(self, calls: Sequence[KnownCall], reads: str | None) -> None:
        self.calls = list(calls)
        self.reads = reads

    def prompts(self) -> list[Prompt]:
        """The known prompts without repetitions."""
        found: list[Prompt] = []
        for call in self.calls:
            if call.prompt is not None and call.prompt not in found:
                found.append(call.prompt)
        return found

    def __str__(self) -> str:
        """The tree of prefixes, with a line for each text and call."""
        root = _Node("")
        for call in self.calls:
            place = root
            for piece in _pieces(call.prompt):
                place = place.child(piece)
            place.child(f"→ {call.kind} {call.name or ''} ({call.statement})")
        lines = list(root.lines(-1))[1:]
        if self.reads is not None:
            lines.append(f"What follows depends on a reply, read at {self.reads}")
        return "\n".join(lines)


def trace(program: Program, *arguments: Any, **named: Any) -> Outline:
    """Runs the program's function without a model, up to where it reads a reply."""
    return _outline(program, arguments, named, "trace")


def prewarm(program: Program, *arguments: Any, backend: object = None, **named: Any) -> int:
    """Computes the prompts that are known before the program runs, and leases them for `SESSION_S`.

    Returns how many tokens were computed. In an event loop: `await asyncio.to_thread(arbora.prewarm, …)`.
    """
    found, lease = backend_of(backend), {"ttl_s": SESSION_S}
    prompts = _outline(program, arguments, named, "prewarm").prompts()
    replies = [submit(found.prefill(prompt, lease)).result() for prompt in prompts]
    return sum(reply.prompt_tokens - reply.cached_tokens for reply in replies)


def _outline(program: Program, arguments: tuple[Any, ...], named: dict[str, Any], caller: str) -> Outline:
    recorder = _Recorder()
    try:
        running = program(recorder.first_state(), *arguments, **named)
        if program.is_async:
            run_in_new_loop(running, f"await asyncio.to_thread(arbora.{caller}, program, …)")
    except* _ReplyReadError:
        pass
    return Outline(recorder.calls, recorder.reads)


class _ReplyReadError(BaseException):
    """Ends the program's function; a BaseException, so that no handler of the program takes it."""


class _Known(msgspec.Struct, frozen=True):
    """A transcript. `is_known`: it contains no reply."""

    transcript: Transcript
    is_known: bool = True


class _Recorder:
    """Takes the place of a run: it records calls, and ends the program where it reads a reply."""

    def __init__(self) -> None:
        self.calls: list[KnownCall] = []
        self.reads: str | None = None

    def first_state(self) -> State:
        return State(self, _done(_Known(Transcript())), {})

    def append(
        self, before: Future[Any], added: Expression, branch: tuple[int, ...], statement: Statement
    ) -> tuple[Future[Any], dict[str, Future[Outcome]]]:
        after = self._run(added, before.result(), branch, statement)
        return _done(after), {call.name: Future() for call in added.calls() if call.name is not None}

    def read(self, future: Future[Any], statement: Statement) -> Any:
        """The transcript if no reply belongs to it."""
        if future.done() and future.result().is_known:
            return future.result().transcript
        self.reads = self.reads or str(statement)
        raise _ReplyReadError

    def wait(self, future: Future[Any], statement: Statement) -> None:
        """Nothing runs, so there is nothing to wait for."""

    async def arrived(self, future: Future[Any], statement: Statement) -> Any:
        return self.read(future, statement)

    async def waited(self, future: Future[Any], statement: Statement) -> None:
        """As `wait`."""

    def _run(self, added: Expression, known: _Known, branch: tuple[int, ...], statement: Statement) -> _Known:
        transcript = known.transcript
        match added:
            case Text(text):
                return _Known(transcript.add(text), known.is_known)
            case Joined(parts):
                for part in parts:
                    known = self._run(part, known, branch, statement)
                return known
            case Turn(role, body):
                inner = self._run(body, _Known(transcript.open(role), known.is_known), branch, statement)
                return _Known(inner.transcript.close(), inner.is_known)
            case ToolAnswer(call_id, content):
                return _Known(transcript.answer_tool(call_id, content), known.is_known)
            case Gen(name) | Select(name):
                prompt = transcript.prompt()
                self.calls.append(
                    KnownCall(
                        statement=str(statement),
                        kind="gen" if isinstance(added, Gen) else "select",
                        name=name,
                        branch=branch,
                        prompt=prompt if known.is_known else None,
                    )
                )
                return _Known(transcript, False)
        raise TypeError(f"{added!r} can't be traced")


class _Node:
    def __init__(self, text: str) -> None:
        self._text = text
        self._children: list[_Node] = []

    def child(self, text: str) -> _Node:
        """The child with this text, a new one if there is none. Calls are never joined."""
        found = [node for node in self._children if node._text == text and not text.startswith("→")]
        if not found:
            found = [_Node(text)]
            self._children += found
        return found[0]

    def lines(self, depth: int) -> Iterator[str]:
        yield "  " * depth + self._text
        for child in self._children:
            yield from child.lines(depth + 1)


def _pieces(prompt: Prompt | None) -> list[str]:
    if prompt is None:
        return ["(after a reply)"]
    if isinstance(prompt, TextPrompt):
        return [repr(prompt.text)]
    turns = [f"{message['role']}: {message['content']!r}" for message in prompt.messages]
    return turns + ([f"assistant: {prompt.prefix!r}"] if prompt.prefix else [])


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future
