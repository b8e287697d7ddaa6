"""Jobs for the processes that build automata, and their results."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from ...runtime.grammar_spec import GrammarSpec
from .automaton import Automaton
from .lanes import LARGE


class Job(NamedTuple):
    """A grammar to build within `deadline_s` of processor time, which is charged to `tenant`. `key` names its
    automaton."""

    key: str
    spec: GrammarSpec
    deadline_s: float
    tenant: str = ""

    @property
    def is_large(self) -> bool:
        return len(self.spec.text) > LARGE


Result: TypeAlias = Automaton | str
"""A job's automaton; for a context-free grammar its text in Lark."""
