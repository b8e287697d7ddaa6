"""The shortest text that ends a reply from wherever its automaton stands.

Ways out of states are found once for each automaton, shortest first and backwards from where places of the
stack are popped. A push is stepped over as a whole once a way out of what it leads to is known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

import numpy as np

from .stack_automaton import CALL, COUNT, COUNT_CALL, DEAD, DROP, GO, POP, PUSH, StackAutomaton

_END = 1 << 30
"""an exit: the text may end. The others are verdicts of pops, and -1 - s for a drop that leads to state s."""
_PLAIN = sorted(range(256), key=lambda byte: (byte > 127 or not chr(byte).isalnum(), byte))


class _Way(NamedTuple):
    """How a way out begins: a byte, where that pushes to and the exit taken there, the state after it."""

    byte: int
    inner: tuple[int, int] | None
    state: int | None


class _Edge(NamedTuple):
    origin: int
    length: int
    way: _Way


class Closing:
    """Counts are taken to hinder nothing: a string may end wherever it counts. Sets of names aren't known."""

    def __init__(self, machine: StackAutomaton) -> None:
        self._machine = machine
        self._lengths: dict[int, dict[int, int]] = defaultdict(dict)
        self._ways: dict[int, dict[int, _Way | None]] = defaultdict(dict)
        self._edges_to: dict[int, list[_Edge]] = defaultdict(list)
        self._pushes_to: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        self._heap: list[tuple[int, int, int, int, _Way | None]] = []
        self._order = count()
        for state in range(len(machine.transitions)):
            self._gather(state)
        while self._heap:
            length, _, state, leaving, way = heappop(self._heap)
            if leaving not in self._ways[state]:
                self._settle(state, leaving, length, way)
        self._text_of = cache(self._spell)

    def text(self, state: int, stack: Sequence[int]) -> bytes | None:
        """What ends the reply from there; None if that isn't known."""
        reached = {state: b""}
        for place in reversed(stack):
            reached = self._popped(reached, place)
        ending = [(here, text) for here, text in reached.items() if _END in self._ways[here]]
        text = min((text + self._text_of(here, _END) for here, text in ending), key=len, default=None)
        return text if text is not None and self._is_end(state, list(stack), text) else None

    def _popped(self, reached: dict[int, bytes], place: int) -> dict[int, bytes]:
        """The texts that lead from states to those below the stack's top place."""
        below: dict[int, bytes] = {}
        for state, text in reached.items():
            for leaving in self._ways[state]:
                target = self._after(leaving, place)
                longer = text + self._text_of(state, leaving)
                if target != DEAD and (target not in below or len(longer) < len(below[target])):
                    below[target] = longer
        return below

    def _is_end(self, state: int, stack: list[int], text: bytes) -> bool:
        end = self._machine.walk(state, stack, text)
        return end != DEAD and bool(self._machine.accepting[end]) and not stack

    def _spell(self, state: int, leaving: int) -> bytes:
        text = bytearray()
        way = self._ways[state][leaving]
        while way is not None:
            text.append(way.byte)
            if way.inner is not None:
                text += self._text_of(*way.inner)
            way = None if way.state is None else self._ways[way.state][leaving]
        return bytes(text)

    def _gather(self, state: int) -> None:
        if self._machine.accepting[state]:
            self._found(state, _END, 0, None)
        for byte, entry in self._entries(state):
            if entry >= 0:
                self._add(_Edge(state, 1, _Way(byte, None, entry)))
            else:
                self._gather_action(state, byte, *self._machine.actions[-2 - entry, :3].tolist())

    def _gather_action(self, state: int, byte: int, kind: int, target: int, operand: int) -> None:
        if kind in (POP, DROP):
            self._found(state, operand if kind == POP else -1 - target, 1, _Way(byte, None, None))
        elif kind in (PUSH, CALL, COUNT_CALL):
            for base in (operand, operand + 1)[: 1 + (kind == COUNT_CALL)]:
                self._pushes_to[target].append((state, byte, base))
        elif kind == GO:
            self._add(_Edge(state, 1, _Way(byte, None, target)))
        elif kind == COUNT:
            for after in (target, operand):
                self._add(_Edge(state, 1, _Way(byte, None, after)))

    def _entries(self, state: int) -> Iterator[tuple[int, int]]:
        """Each entry that leads on, with its plainest byte."""
        row = self._machine.transitions[state, self._machine.class_of_byte[_PLAIN]]
        for entry, first in zip(*(part.tolist() for part in np.unique(row, return_index=True)), strict=True):
            if entry != DEAD:
                yield _PLAIN[first], entry

    def _add(self, edge: _Edge) -> None:
        assert edge.way.state is not None
        self._edges_to[edge.way.state].append(edge)
        for leaving, length in self._lengths[edge.way.state].items():
            self._found(edge.origin, leaving, edge.length + length, edge.way)

    def _found(self, state: int, leaving: int, length: int, way: _Way | None) -> None:
        heappush(self._heap, (length, next(self._order), state, leaving, way))

    def _settle(self, state: int, leaving: int, length: int, way: _Way | None) -> None:
        self._lengths[state][leaving], self._ways[state][leaving] = length, way
        for edge in self._edges_to[state]:
            self._found(edge.origin, leaving, edge.length + length, edge.way)
        for origin, byte, base in self._pushes_to[state]:
            after = self._after(leaving, base)
            if after != DEAD:
                self._add(_Edge(origin, 1 + length, _Way(byte, (state, leaving), after)))

    def _after(self, leaving: int, place: int) -> int:
        """The state below a place of the stack that is left by that exit."""
        if leaving == _END:
            return DEAD
        return -1 - leaving if leaving < 0 else int(self._machine.returns[place + leaving])
