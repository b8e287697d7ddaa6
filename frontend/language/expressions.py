"""The expressions that a program appends to its state: text, turns of a chat, and calls to the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .transcript import Transcript


@dataclass(frozen=True)
class Gen:
    """A reply of the model. `sampling` has the HTTP API's names; `read` makes the value of its text."""

    name: str | None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    read: Callable[[str], object] = str


@dataclass(frozen=True)
class Select:
    """The choice that the model finds likeliest, by the mean log-probability of its tokens."""

    name: str | None
    choices: tuple[str, ...]


Step: TypeAlias = Gen | Select | Callable[[Transcript], Transcript]


@dataclass(frozen=True)
class Expression:
    """Steps that extend a transcript in order: calls and known text. `+` joins expressions and strings."""

    steps: tuple[Step, ...]

    def __add__(self, other: Expression | str) -> Expression:
        return join([self, other])

    def __radd__(self, other: Expression | str) -> Expression:
        return join([other, self])

    @property
    def calls(self) -> list[Gen | Select]:
        return [step for step in self.steps if isinstance(step, Gen | Select)]


def join(parts: Sequence[object]) -> Expression:
    """Joins expressions and strings. Raises TypeError for any other part."""
    return Expression(tuple(step for part in parts for step in _read_steps(part)))


def _read_steps(part: object) -> tuple[Step, ...]:
    if isinstance(part, str):
        return (lambda transcript: transcript.add(part),)
    if isinstance(part, Expression):
        return part.steps
    raise TypeError(
        f"{part!r} is {type(part).__name__}, but only text and expressions such as arbora.gen(…) can be "
        "appended to a state: make it a string first."
    )
