"""Joins automata and fixed texts into one stack automaton."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...runtime.automaton_format import DEAD
from ..errors import TooLargeError
from ..machine.stack_automaton import StackAutomaton
from .linking import Block, Parts, linked_automaton

MAX_STATES = 100_000


class Linker:
    """Makes states, which are numbers. The states that can follow a state must be made before it, or be a
    `hole`."""

    def __init__(self) -> None:
        self._count = 0
        self._blocks: list[Block] = []
        self._texts: dict[tuple[int, int], int] = {}
        self._forks: dict[frozenset[int], int] = {}
        self._holes: dict[int, int] = {}
        self.end = self._reserved(1)

    def text(self, data: bytes, following: int) -> int:
        """The state from which exactly `data` leads to `following`."""
        for byte in reversed(data):
            if (byte, following) not in self._texts:
                self._texts[byte, following] = self._reserved(1)
            following = self._texts[byte, following]
        return following

    def fork(self, states: Iterable[int]) -> int:
        """A state that allows every text that one of these states allows."""
        members = frozenset(states)
        if len(members) == 1:
            return next(iter(members))
        if members not in self._forks:
            self._forks[members] = self._reserved(1)
        return self._forks[members]

    def hole(self) -> int:
        """A new state; `fill` defines it later."""
        return self._reserved(1)

    def fill(self, hole: int, state: int) -> None:
        self._holes[hole] = state

    def add(self, machine: StackAutomaton, following: Mapping[int, int]) -> int:
        """Adds a copy of the machine and returns its start. In a state that `following` has as a key, the
        text may also continue from the state's value there, if the stack is empty."""
        first = self._reserved(len(machine.transitions))
        goes_on = (machine.transitions != DEAD).any(axis=1)
        leaves = {
            state: self.fork([first + state, after]) if goes_on[state] else after
            for state, after in following.items()
        }
        self._blocks.append(Block(first, machine, leaves))
        return leaves.get(machine.start, first + machine.start)

    def linked(self, start: int) -> StackAutomaton:
        """Builds the automaton. Raises AmbiguousError, TooLargeError."""
        members = {fork: states for states, fork in self._forks.items()}
        members |= {hole: frozenset([state]) for hole, state in self._holes.items()}
        texts = {state: step for step, state in self._texts.items()}
        return linked_automaton(Parts(self._count, self.end, self._blocks, texts, members), start)

    def _reserved(self, count: int) -> int:
        first = self._count
        self._count += count
        if self._count > MAX_STATES:
            raise TooLargeError(f"more than {MAX_STATES} states")
        return first
