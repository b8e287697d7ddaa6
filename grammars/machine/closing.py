"""The shortest text that ends a reply from any state and stack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from ...runtime.automaton_format import DEAD, DROP, POP
from .shortest_exits import ENDED, Exit, Parts, ShortestExits
from .stack_automaton import StackAutomaton, names_of

KNOWN_ROUTES = 1024  # routes to keep; most bytes of a string leave state and stack as they are
_END = Exit(ENDED, 0, 0)


class _Route(NamedTuple):
    """A text of `length` bytes, as a sequence of parts."""

    length: int
    parts: Parts


class Closing:
    """Joins the shortest exits of the stack's places, from the top down."""

    def __init__(self, machine: StackAutomaton) -> None:
        self._bottom = len(machine.bottom)
        self._machine = machine.without_gaps()
        self._exits = ShortestExits(self._machine)
        self._route = lru_cache(KNOWN_ROUTES)(self._find_route)

    @property
    def nbytes(self) -> int:
        return self._exits.nbytes

    def length(self, state: int, stack: Sequence[int]) -> int | None:
        """The length of `text` in bytes, found without spelling the text; None if it isn't known."""
        route = self._route(state, tuple(stack[self._bottom :]))
        return None if route is None else route.length

    def text(self, state: int, stack: Sequence[int]) -> bytes | None:
        """The shortest text that ends the reply, or None if it isn't known. JSON in it has no white space
        between its tokens, but for the rest of an indentation that has begun."""
        stack = stack[self._bottom :]
        route = self._route(state, tuple(stack))
        if route is None:
            return None
        text = b"".join(self._exits.text(*part) for part in route.parts)
        return text if self._is_end(state, list(stack), text) else None

    def _find_route(self, state: int, stack: tuple[int, ...]) -> _Route | None:
        reached: list[dict[int, _Route]] = [{} for _ in range(len(stack) + 1)]
        reached[-1][state] = _Route(0, ())
        for height in range(len(stack), 0, -1):
            for here, begun in reached[height].items():
                for popped, after, way in self._list_exits(here, stack[:height]):
                    length = begun.length + way.length
                    known = reached[height - popped].get(after)
                    if after != DEAD and (known is None or length < known.length):
                        reached[height - popped][after] = _Route(length, (*begun.parts, *way.parts))
        ending = [
            _Route(route.length + self._exits.lengths[here][_END], (*route.parts, (here, _END)))
            for here, route in reached[0].items()
            if _END in self._exits.lengths[here]
        ]
        return min(ending, default=None)

    def _list_exits(self, state: int, stack: Sequence[int]) -> Iterator[tuple[int, int, _Route]]:
        """(number of places popped, state after that, route) for each exit from the stack's top."""
        words = 0
        for exit, length in self._exits.lengths[state].items():
            if exit.kind in (POP, DROP):
                yield 1, self._exits.after(exit, stack[-1]), _Route(length, ((state, exit),))
            words = max(words, exit.words)
        if 0 < words < len(stack):
            below = len(stack) - words
            seen = names_of(stack[below:][::-1])
            for length, parts in self._exits.complete(state, seen).values():
                yield 1 + words, self._exits.after(parts[-1][1], stack[below - 1]), _Route(length, parts)

    def _is_end(self, state: int, stack: list[int], text: bytes) -> bool:
        end = self._machine.walk(state, stack, text)
        return end != DEAD and bool(self._machine.accepting[end]) and not stack
