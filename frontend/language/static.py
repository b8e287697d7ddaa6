"""Finds the prompts of a program without running calls, up to the first reply that the program reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias

import msgspec

from .backend import Prompt, TextPrompt
from .background import run_in_new_loop, submit
from .default_backend import backend_of
from .errors import Statement
from .execution import SESSION_S
from .expressions import Expression, Gen, Select
from .program import Program
from .state import Outcome, State
from .transcript import Transcript

_Tree: TypeAlias = "dict[tuple[str, int], _Tree]"
"""The texts and calls that follow a prefix. Calls have a number, so that no two are the same."""


class KnownCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that does not depend on replies. `prompt` is None if the prompt contains an earlier reply."""

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
        root: _Tree = {}
        for number, call in enumerate(self.calls, 1):
            place = root
            for piece in _pieces(call.prompt):
                place = place.setdefault((piece, 0), {})
            place[f"→ {call.kind} {call.name or ''} ({call.statement})", number] = {}
        lines = list(_write_tree(root))
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
    return sum(reply.usage.prompt_tokens - reply.usage.cached_tokens for reply in replies)


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
    """Ends the program's function. It is a BaseException, so that no `except Exception` catches it."""


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
        known: _Known = before.result()
        transcript, is_known = known.transcript, known.is_known
        for step in added.steps:
            if not isinstance(step, Gen | Select):
                transcript = step(transcript)
                continue
            prompt = transcript.prompt()
            self.calls.append(
                KnownCall(
                    statement=str(statement),
                    kind="gen" if isinstance(step, Gen) else "select",
                    name=step.name,
                    branch=branch,
                    prompt=prompt if is_known else None,
                )
            )
            is_known = False
        after = _Known(transcript, is_known)
        return _done(after), {call.name: Future() for call in added.calls if call.name is not None}

    def read(self, future: Future[Any], statement: Statement) -> Any:
        """The transcript. If it contains a reply, ends the program's function instead."""
        if future.done() and future.result().is_known:
            return future.result().transcript
        self.reads = self.reads or str(statement)
        raise _ReplyReadError

    def wait(self, future: Future[Any], statement: Statement) -> None:
        """Returns at once, because nothing runs."""

    async def arrived(self, future: Future[Any], statement: Statement) -> Any:
        return self.read(future, statement)

    async def waited(self, future: Future[Any], statement: Statement) -> None:
        """As `wait`: returns at once."""


def _write_tree(tree: _Tree, depth: int = 0) -> Iterator[str]:
    for (text, _), children in tree.items():
        yield "  " * depth + text
        yield from _write_tree(children, depth + 1)


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
