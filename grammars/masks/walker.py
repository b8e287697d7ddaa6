"""Walks from states of one automaton, with what they have in common."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from .branches import Branches, Walked, no_branches, walk_states
from .configurations import Configurations, grown, no_configurations
from .differences import Apart, walk_apart, walk_differences
from .signatures import NO_ROUNDS, Rounds
from .token_trie import TokenTries
from .walks import Found, Machine, Roots, roots_by_class, walk_plain

FEW_NODES = 16  # part of all that two walks at once look at in less time than one walk at all


class Walker:
    def __init__(self, tries: TokenTries, machine: Machine, found: Found) -> None:
        self.machine = machine
        self.configurations = Configurations(*no_configurations(machine))
        self._tries = tries
        self._roots = Roots(*roots_by_class(tries, machine))
        self.branches = no_branches(tries, self._roots, machine)
        self._found = found

    def states(
        self,
        states: NDArray[np.int32],
        ends_here: NDArray[np.bool_],
        is_dear: NDArray[np.bool_],
        limit: int,
        few: int,
    ) -> Walked:
        """See `walk_states`."""
        while True:
            tables = (self._tries, self._roots, self.machine, self.configurations, self.branches)
            walked, branches, had_room = walk_states(
                *tables, states, ends_here, is_dear, self._found, limit, few
            )
            self.branches = Branches(*branches)
            if had_room:
                return Walked(*walked)
            self.configurations = Configurations(*grown(self.configurations))

    def differences(
        self, states: NDArray[np.int32], likes: NDArray[np.int32], ends_apart: NDArray[np.bool_]
    ) -> Apart:
        """See `walk_differences`."""
        return Apart(*self._walk(walk_differences, NO_ROUNDS, states, likes, ends_apart, self._found))

    def plain(self, state: int) -> list[NDArray[np.int32]]:
        """The plain tokens that are allowed from a state, undecided, and openers, until the next walk."""
        (counts,) = self._walk(walk_plain, state, self._found)
        return [tokens[:count] for tokens, count in zip(self._found, counts, strict=True)]

    def apart(self, rounds: Rounds, state: int, like: int) -> NDArray[np.int32] | None:
        """The plain tokens that only one of two states allows, until the next walk; see `walk_apart`."""
        most = len(self._tries.ends) // FEW_NODES
        (count,) = self._walk(walk_apart, rounds, state, like, self._found, most)
        return None if count < 0 else self._found.allowed[:count]

    def _walk(self, walk: Callable[..., tuple], *arguments: object) -> tuple:  # type: ignore[type-arg]
        """Again with more room until there is enough."""
        while True:
            *results, had_room = walk(self._tries, self._roots, self.machine, self.configurations, *arguments)
            if had_room:
                return tuple(results)
            self.configurations = Configurations(*grown(self.configurations))
