"""Compiles grammars with llguidance, each in a new process."""

from __future__ import annotations

import time
from typing import TypeVar

from ..errors import CompilerError, error_of
from ..host.client import GrammarProcess, HostServer
from ..host.grammar import HostGrammar
from ..host.messages import Compiled, CompileJob, Description, Failed, Outcome
from .spending import Spending

Kind = TypeVar("Kind", Compiled, Description)


class HostJobs:
    """Runs jobs in llguidance's processes. Calls wait, and raise errors of the grammar and those of
    `GrammarProcess.compile`. Thread-safe."""

    def __init__(self, server: HostServer, eos_tokens: tuple[int, ...], spending: Spending) -> None:
        self._server = server
        self._eos_tokens = eos_tokens
        self._spending = spending

    def compiled(self, job: CompileJob, tenant: str) -> HostGrammar:
        process = self._server.fork(tenant)
        try:
            made = _expected(self._outcome(process, job, tenant), Compiled)
        except Exception:
            process.end()  # a cached error's traceback would keep the process alive
            raise
        return HostGrammar(process, self._eos_tokens, made.nbytes, made.left_out)

    def described(self, job: CompileJob, tenant: str) -> Description:
        """The description of a structural tag."""
        process = self._server.fork(tenant)
        try:
            return _expected(self._outcome(process, job, tenant), Description)
        finally:
            process.end()

    def close(self) -> None:
        """Ends all processes, and so all waiting calls."""
        self._server.close()

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
