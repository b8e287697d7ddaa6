"""What a program appends to its state: text, turns of a chat, and calls to the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Role: TypeAlias = Literal["system", "user", "assistant"]


class Expression:
    """Expressions and strings are joined with `+`."""

    def __add__(self, other: Expression | str) -> Joined:
        return Joined((self, expression(other)))

    def __radd__(self, other: Expression | str) -> Joined:
        return Joined((expression(other), self))

    def calls(self) -> Iterator[Gen | Select]:
        """The calls in it, in their order."""
        return iter(())


@dataclass(frozen=True)
class Text(Expression):
    text: str


@dataclass(frozen=True)
class Gen(Expression):
    """A reply of the model. `sampling` has the HTTP API's names; `read` makes the value of its text."""

    name: str | None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    read: Callable[[str], object] = str

    def calls(self) -> Iterator[Gen | Select]:
        yield self


@dataclass(frozen=True)
class Select(Expression):
    """The choice that the model finds likeliest, by the mean log-probability of its tokens."""

    name: str | None
    choices: tuple[str, ...]

    def calls(self) -> Iterator[Gen | Select]:
        yield self


@dataclass(frozen=True)
class Turn(Expression):
    role: Role
    body: Expression

    def calls(self) -> Iterator[Gen | Select]:
        return self.body.calls()


@dataclass(frozen=True)
class ToolAnswer(Expression):
    """A function's answer to a call of the model's, as a chat's `tool` message."""

    call_id: str
    content: str


@dataclass(frozen=True)
class Joined(Expression):
    parts: tuple[Expression, ...]

    def calls(self) -> Iterator[Gen | Select]:
        for part in self.parts:
            yield from part.calls()


def expression(value: object) -> Expression:
    """Raises TypeError for a value that is no expression and no string."""
    if isinstance(value, str):
        return Text(value)
    if isinstance(value, Expression):
        return value
    raise TypeError(
        f"{value!r} is {type(value).__name__}, but only text and expressions such as arbora.gen(…) can be "
        "appended to a state: make it a string first."
    )


def joined(parts: Sequence[object]) -> Expression:
    return Joined(tuple(expression(part) for part in parts))
