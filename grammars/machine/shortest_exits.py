"""The shortest ways from each state to an exit: the end of the text, or an action that pops the stack's top.

The search runs backwards from the exits, shortest first. Once the shortest exit of a nested value is known,
the value counts as one step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple, TypeAlias

import numpy as np

from ...runtime.automaton_format import (
    CALL,
    CLOSE,
    COUNT,
    COUNT_CALL,
    DEAD,
    DROP,
    KIND,
    NAMES,
    OPEN,
    POP,
    PUSH,
    SEE,
    WORDS,
)
from .stack_automaton import StackAutomaton, names_of

ENDED = -1  # in place of an action's kind; no kind has this number
EXIT_BYTES = 800  # estimated bytes of memory for each exit of a state; measured: 350 to 900
_PLAIN = sorted(range(256), key=lambda byte: (byte > 127 or not chr(byte).isalnum(), byte))


class Exit(NamedTuple):
    """An action that ends a way (see `StackAutomaton`), or `ENDED` if the text may end.

    A required name of an unordered object ends a way too. `names` are the names that the object must have to
    be closed, `words` the places of its set.
    """

    kind: int
    target: int
    operand: int
    names: int = 0
    words: int = 0


Parts: TypeAlias = tuple[tuple[int, Exit], ...]
"""a sequence of ways, each as (state, exit)"""


def _exit(action: Sequence[int]) -> Exit:
    kind, target, operand = action[:3]
    if kind == CLOSE:
        return Exit(kind, 0, operand, names_of(action[NAMES:]), words=target)
    return Exit(kind, target, operand, words=action[WORDS] if kind == SEE else 0)


class _Way(NamedTuple):
    """A way's first step: a byte, the nested value's parts, and the state after them (None at the exit)."""

    byte: int
    inner: Parts
    state: int | None


class _Edge(NamedTuple):
    origin: int
    length: int
    way: _Way


class ShortestExits:
    """`lengths[state][exit]` is the number of bytes from a state to an exit that it can reach.

    Counts are ignored: a counted string may end anywhere.
    """

    def __init__(self, machine: StackAutomaton) -> None:
        self._machine = machine
        self.lengths: dict[int, dict[Exit, int]] = defaultdict(dict)
        self._ways: dict[int, dict[Exit, _Way | None]] = defaultdict(dict)
        self._edges_to: dict[int, list[_Edge]] = defaultdict(list)
        self._pushes_to: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        self._opens: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        self._closed: dict[tuple[int, int], int] = {}
        self._heap: list[tuple[int, int, int, Exit, _Way | None]] = []
        self._order = count()
        closing = machine.actions[machine.actions[:, KIND] == CLOSE]
        self._needed = names_of(np.bitwise_or.reduce(closing[:, NAMES:], axis=0, initial=0).tolist())
        for state, entries in enumerate(self._entries()):
            self._gather(state, entries)
        self._settle_all()
        while self._step_over_objects():
            self._settle_all()
        self._edges_to, self._pushes_to, self._opens = {}, {}, {}
        self.text = cache(self._spell)

    @property
    def nbytes(self) -> int:
        """An estimate of the memory that the exits take."""
        return EXIT_BYTES * sum(map(len, self.lengths.values()))

    def complete(self, state: int, seen: int) -> dict[int, tuple[int, Parts]]:
        """For each verdict with which an unordered object can end: the number of bytes and the ways to it.

        The object's missing required names come nearest first. `seen`: the names that it has so far, as bits.
        """
        length, parts = 0, Parts()
        while True:
            lengths = self.lengths[state]
            ending = [exit for exit in lengths if exit.kind == CLOSE and not exit.names & ~seen]
            if ending:
                return {
                    exit.operand: (length + lengths[exit], (*parts, (state, exit)))
                    for exit in sorted(ending, key=lambda exit: -lengths[exit])
                }
            unseen = [exit for exit in lengths if exit.kind == SEE and not seen >> exit.operand & 1]
            if not unseen:
                return {}
            missing = [exit for exit in unseen if self._is_needed(exit)]
            nearest = min(missing or unseen, key=lambda exit: lengths[exit])
            length, parts = length + lengths[nearest], (*parts, (state, nearest))
            state, seen = nearest.target, seen | 1 << nearest.operand

    def _is_needed(self, name: Exit) -> bool:
        after = self.lengths[name.target]
        return any(exit.kind == CLOSE and exit.names >> name.operand & 1 for exit in after)

    def after(self, exit: Exit, place: int) -> int:
        """The state after an exit that pops this place of the stack."""
        if exit.kind == DROP:
            return exit.target
        return int(self._machine.returns[place + exit.operand]) if exit.kind in (POP, CLOSE) else DEAD

    def _spell(self, state: int, exit: Exit) -> bytes:
        text = bytearray()
        way = self._ways[state][exit]
        while way is not None:
            text.append(way.byte)
            for part in way.inner:
                text += self.text(*part)
            way = None if way.state is None else self._ways[way.state][exit]
        return bytes(text)

    def _gather(self, state: int, entries: Mapping[int, int]) -> None:
        if self._machine.accepting[state]:
            self._add_exit(state, Exit(ENDED, 0, 0), 0, None)
        for entry, byte in entries.items():
            if entry >= 0:
                self._add(_Edge(state, 1, _Way(byte, (), entry)))
            elif entry != DEAD:
                self._gather_action(state, byte, _exit(self._machine.actions[-2 - entry].tolist()))

    def _gather_action(self, state: int, byte: int, action: Exit) -> None:
        kind, target, operand = action[:3]
        if kind in (POP, DROP, CLOSE) or (kind == SEE and self._needed >> operand & 1):
            self._add_exit(state, action, 1, _Way(byte, (), None))
        elif kind in (PUSH, CALL, COUNT_CALL):
            for base in (operand, operand + 1)[: 1 + (kind == COUNT_CALL)]:
                self._pushes_to[target].append((state, byte, base))
        elif kind == OPEN:
            self._opens[target].append((state, byte, operand))
        else:
            for after in (target, operand)[: 1 + (kind == COUNT)]:
                self._add(_Edge(state, 1, _Way(byte, (), after)))

    def _entries(self) -> Iterator[dict[int, int]]:
        """For each state: its different entries, each with the plainest byte that leads to it."""
        machine = self._machine
        plainest = {machine.class_of_byte[byte]: byte for byte in _PLAIN[::-1]}
        classes = sorted(plainest, key=lambda each: -_PLAIN.index(plainest[each]))
        bytes_ = [plainest[each] for each in classes]
        for row in machine.transitions[:, classes].tolist():
            yield dict(zip(row, bytes_, strict=True))

    def _add(self, edge: _Edge) -> None:
        assert edge.way.state is not None
        self._edges_to[edge.way.state].append(edge)
        for exit, length in self.lengths[edge.way.state].items():
            self._add_exit(edge.origin, exit, edge.length + length, edge.way)

    def _add_exit(self, state: int, exit: Exit, length: int, way: _Way | None) -> None:
        heappush(self._heap, (length, next(self._order), state, exit, way))

    def _settle_all(self) -> None:
        while self._heap:
            length, _, state, exit, way = heappop(self._heap)
            if length < self.lengths[state].get(exit, length + 1):
                self._settle(state, exit, length, way)

    def _settle(self, state: int, exit: Exit, length: int, way: _Way | None) -> None:
        self.lengths[state][exit], self._ways[state][exit] = length, way
        for edge in self._edges_to[state]:
            self._add_exit(edge.origin, exit, edge.length + length, edge.way)
        for origin, byte, base in self._pushes_to[state]:
            self._step_over(origin, byte, length, ((state, exit),), self.after(exit, base))

    def _step_over(self, origin: int, byte: int, length: int, inner: Parts, after: int) -> None:
        if after != DEAD:
            self._add(_Edge(origin, 1 + length, _Way(byte, inner, after)))

    def _step_over_objects(self) -> bool:
        """Finds ways through unordered objects. Returns whether any is new or shorter."""
        has_found = False
        for start, origins in self._opens.items():
            for verdict, (length, inner) in self.complete(start, 0).items():
                if length < self._closed.get((start, verdict), length + 1):
                    self._closed[start, verdict] = length
                    has_found = True
                    for origin, byte, base in origins:
                        after = self.after(inner[-1][1], base)
                        self._step_over(origin, byte, length, inner, after)
        return has_found
