"""Jobs for the processes that build automata, and their results."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from ...runtime.grammar_spec import GrammarSpec
from .automaton import Automaton


class Job(NamedTuple):
    """A grammar to build in `deadline_s` of processor time. `key` names its automaton; `tenant` pays for the
    time. `is_long`: it may take all of a long deadline, so it must not keep small grammars waiting."""

    key: str
    spec: GrammarSpec
    deadline_s: float
    tenant: str = ""
    is_long: bool = False


Result: TypeAlias = Automaton | str
"""A job's automaton; for a context-free grammar its text in Lark."""
