"""Jobs for the processes that build automata, and their results."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from ...runtime.grammar_spec import GrammarSpec
from .automaton import Automaton


class Job(NamedTuple):
    """A grammar to build within `deadline_s` of processor time, which is charged to `tenant`. `key` names its
    automaton. `is_long`: it may take the whole time of a grammar."""

    key: str
    spec: GrammarSpec
    deadline_s: float
    tenant: str = ""
    is_long: bool = False


Result: TypeAlias = Automaton | str
"""A job's automaton; for a context-free grammar its text in Lark."""
