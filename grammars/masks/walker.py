"""Walks from states of one automaton, and the tables that these walks share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .configurations import Configurations, grow, no_configurations
from .edge_walks import Edges, Limits, WalkedStates, no_edges, walk_states
from .token_trie import TokenTries
from .walks import Buffers, Context, Machine, RootGroups, root_groups, walk_quote_free


class Walker:
    def __init__(self, tries: TokenTries, machine: Machine, buffers: Buffers) -> None:
        groups = RootGroups(*root_groups(tries, machine))
        levels = np.empty((3, tries.max_bytes + 1), np.int32)
        configurations = Configurations(*no_configurations(machine))
        self.context = Context(tries, groups, machine, configurations, buffers, levels)
        self.edges = no_edges(tries, groups, machine)

    def states(
        self,
        states: NDArray[np.int32],
        may_end: NDArray[np.bool_],
        is_costly: NDArray[np.bool_],
        limits: Limits,
    ) -> WalkedStates:
        while True:
            walked, edges, had_capacity = walk_states(
                self.context, self.edges, states, may_end, is_costly, limits
            )
            self.edges = Edges(*edges)  # kept even after a failure, because the edges walked so far are valid
            if had_capacity:
                return WalkedStates(*walked)
            self._grow()

    def quote_free(self, state: int) -> list[NDArray[np.int32]]:
        """The allowed, undecided and opening quote-free tokens of a state; valid until the next walk."""
        while True:
            counts, had_capacity = walk_quote_free(self.context, state)
            if had_capacity:
                return [tokens[:count] for tokens, count in zip(self.context.buffers, counts, strict=True)]
            self._grow()

    def _grow(self) -> None:
        configurations = Configurations(*grow(self.context.configurations))
        self.context = self.context._replace(configurations=configurations)
