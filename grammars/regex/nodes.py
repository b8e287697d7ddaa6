"""The parts of a regex."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from .ranges import Ranges


class Characters(Struct, frozen=True):
    """Matches one of these code points."""

    ranges: Ranges


class Sequence(Struct, frozen=True):
    parts: tuple[Node, ...]


class Choice(Struct, frozen=True):
    branches: tuple[Node, ...]


class Repeat(Struct, frozen=True):
    """`most` is None without an upper bound."""

    part: Node
    least: int
    most: int | None


class Anchor(Struct, frozen=True):
    """`^` at the start of the text, `$` at its end."""

    letter: str


class LookAhead(Struct, frozen=True):
    """Requires that the rest of the text begins with the part, or that it does not."""

    part: Node
    is_negative: bool


Node: TypeAlias = "Characters | Sequence | Choice | Repeat | Anchor | LookAhead"
