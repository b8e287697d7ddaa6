"""What a process that builds automata is asked for, and what it answers with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from ..regex.pattern import without_anchors
from ..schema import PropertyOrder, Unenforced
from ..source import any_of
from .automaton import Automaton
from .lanes import LARGE


class Pattern(NamedTuple):
    """A regex as users write it, or a JSON list of strings."""

    text: str
    is_choice: bool

    @property
    def regex(self) -> str:
        return any_of(self.text) if self.is_choice else without_anchors(self.text)


class Schema(NamedTuple):
    """A JSON schema; `separators` are those between items and after names."""

    text: str
    separators: tuple[str, str]
    property_order: PropertyOrder = "schema"
    unenforced: Unenforced = "refuse"


class StructuralTag(NamedTuple):
    """`special` are the bytes by which automata know special tokens, by name."""

    text: str
    special: Mapping[str, bytes]
    property_order: PropertyOrder = "schema"
    unenforced: Unenforced = "refuse"

    def spelled(self, text: str) -> bytes:
        """The bytes of a text, in which the longest names of special tokens are those tokens."""
        names = sorted((name for name in self.special if name in text), key=len, reverse=True)
        if not names:
            return text.encode()
        parts = re.split(f"({'|'.join(map(re.escape, names))})", text)
        return b"".join(self.special.get(part, part.encode()) for part in parts)


class ContextFree(NamedTuple):
    """A grammar in GBNF, which is converted to Lark's syntax."""

    text: str


Buildable: TypeAlias = str | Pattern | Schema | StructuralTag | ContextFree
"""a regex without anchors, or any other"""


class Job(NamedTuple):
    key: str
    grammar: Buildable
    deadline_s: float
    tenant: str = ""

    @property
    def text(self) -> str:
        return self.grammar if isinstance(self.grammar, str) else self.grammar.text

    @property
    def is_large(self) -> bool:
        return len(self.text) > LARGE


Result: TypeAlias = Automaton | str
"""what a job gives: of a context-free grammar its text for Lark"""
