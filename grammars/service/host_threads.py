"""Threads that wait for llguidance's processes, and attempts at a grammar that several requests share."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock
from typing import NamedTuple, TypeVar

from ..errors import CompilerError, error_of
from ..host.client import GrammarProcess, HostServer
from ..host.grammar import HostGrammar
from ..host.messages import Compiled, CompileJob, Description, Failed, Outcome
from .lanes import Lanes
from .spending import Spending

Kind = TypeVar("Kind", Compiled, Description)


class HostStart(NamedTuple):
    """llguidance's grammar, and whether a request may start with it."""

    grammar: HostGrammar
    may_begin: bool


class HostThreads:
    """Must be started before the first `submit`."""

    def __init__(
        self, lanes: Lanes, server: HostServer, eos_tokens: tuple[int, ...], spending: Spending
    ) -> None:
        self._lanes = lanes
        self._spending = spending
        self._server = server
        self._eos_tokens = eos_tokens

    def start(self) -> None:
        """Starts the server; all tasks wait for it."""
        self._lanes.submit(0, self._start)

    def submit(self, job: CompileJob, tenant: str) -> Future[HostStart]:
        """Compiles in a new process. The future's errors are a grammar's, and those of
        `GrammarProcess.compile`."""
        return self._lanes.submit(len(job.spec.text), lambda: self._compiled(job, tenant), tenant)

    def described(self, job: CompileJob, tenant: str) -> Description:
        """The description of a structural tag; waits for it. Raises the errors of `submit`."""

        def described() -> Description:
            process = self._server.fork(tenant)
            try:
                return _expected(self._outcome(process, job, tenant), Description)
            finally:
                process.end()

        return self._lanes.submit(len(job.spec.text), described, tenant).result()

    def close(self) -> None:
        """Ends all processes, and so all tasks."""
        self._server.close()
        self._lanes.close()

    def _start(self) -> None:
        with suppress(CompilerError):  # the first grammar will try again
            self._server.start()

    def _compiled(self, job: CompileJob, tenant: str) -> HostStart:
        process = self._server.fork(tenant)
        try:
            made = _expected(self._outcome(process, job, tenant), Compiled)
        except Exception:
            process.end()  # a cached error's traceback would keep the process alive
            raise
        return HostStart(HostGrammar(process, self._eos_tokens, made.nbytes, made.left_out), made.may_begin)

    def _outcome(self, process: GrammarProcess, job: CompileJob, tenant: str) -> Outcome:
        began = time.monotonic()
        try:
            return process.compile(job)
        finally:
            self._spending.add(tenant, time.monotonic() - began)


def _expected(outcome: Outcome, kind: type[Kind]) -> Kind:
    if isinstance(outcome, Failed):
        raise error_of(outcome.fault)
    if not isinstance(outcome, kind):
        raise CompilerError(f"its process answered with a {type(outcome).__name__}")
    return outcome


class HostAttempt:
    """llguidance's attempt at one grammar, begun at its first use."""

    def __init__(self, begin: Callable[[], Future[HostStart]]) -> None:
        self._begin = begin
        self._lock = Lock()
        self._future: Future[HostStart] | None = None

    def begun(self) -> Future[HostStart]:
        with self._lock:
            if self._future is None:
                self._future = self._begin()
            return self._future

    def cancel(self) -> None:
        """Cancels the attempt, unless it runs."""
        with self._lock:
            if self._future is not None:
                self._future.cancel()
