"""Jobs for the processes that build automata, and their results."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from ...runtime.grammar_spec import GrammarSpec
from .automaton import Automaton

PROCESS, NOTICE, RESULT, LAST_RESULT = b"P", b"N", b"R", b"L"
"""The first byte of a message from such a process: its process id, a notice that it compiles its own code, a
job's result, or a result after which it ends."""

GoOn: TypeAlias = Callable[[], bool]
"""Whether a job that takes longer than a short one may go on; from then on it counts as long."""


class Work(NamedTuple):
    """A grammar to build within `deadline_s` of processor time. `key` names its automaton."""

    key: str
    spec: GrammarSpec
    deadline_s: float


class Job(NamedTuple):
    """Work whose time is charged to `tenant`. A job without `go_on` is long from the start."""

    key: str
    spec: GrammarSpec
    deadline_s: float
    tenant: str = ""
    go_on: GoOn | None = None

    @property
    def is_long(self) -> bool:
        return self.go_on is None

    @property
    def work(self) -> Work:
        return Work(self.key, self.spec, self.deadline_s)


Result: TypeAlias = Automaton | str
"""A job's automaton; for a context-free grammar its text in Lark."""
