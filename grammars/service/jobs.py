"""Jobs for the processes that build automata, and their results."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from ...runtime.grammar_spec import GrammarSpec
from .automaton import Automaton
from .lanes import LARGE


class Job(NamedTuple):
    """A grammar to build in `deadline_s` of processor time. `key` names its automaton; `tenant` pays for the
    time."""

    key: str
    spec: GrammarSpec
    deadline_s: float
    tenant: str = ""

    @property
    def is_large(self) -> bool:
        return len(self.spec.text) > LARGE


Result: TypeAlias = Automaton | str
"""A job's automaton; for a context-free grammar its text in Lark."""
