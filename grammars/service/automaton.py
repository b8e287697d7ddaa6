"""An automaton with the token masks of its states: the data that the sampling kernel needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...runtime.automaton_format import DECIDED, MASK, NO_MASK, OWN, SHARED, STACK_DEPTH, AutomatonTables
from ..errors import GrammarError
from ..machine.closing import Closing
from ..machine.stack_automaton import StackAutomaton
from ..masks.stack import StackMasks


@dataclass(frozen=True, eq=False)
class Automaton:
    """`machine` for the host, and the same with token masks for the device (`tables`)."""

    key: str
    machine: StackAutomaton
    tables: AutomatonTables
    left_out: tuple[tuple[str, str], ...] = ()
    """Keyword and path of each constraint that is not enforced."""

    @property
    def nbytes(self) -> int:
        """The bytes on the device."""
        return self.tables.nbytes

    @property
    def host_nbytes(self) -> int:
        """The bytes in the scheduler: every table, and the shortest exits if they were found."""
        exits = self.closing.nbytes if "closing" in vars(self) else 0
        return self.machine.nbytes + self.tables.nbytes + self.forced.nbytes + exits

    @cached_property
    def forced(self) -> NDArray[np.int16]:
        """See `StackAutomaton.forced`."""
        return self.machine.forced()

    @cached_property
    def closing(self) -> Closing:
        """The shortest ends of replies. Finding them takes up to two seconds."""
        return Closing(self.machine)

    def find_shortest_exits(self) -> None:
        """Finds `closing` now, so that later uses don't wait."""
        _ = self.closing


def with_masks(key: str, machine: StackAutomaton, masks: StackMasks) -> Automaton:
    """The machine with token masks.

    Raises GrammarError if no token can begin a match, TooLargeError if the masks take too much memory.
    """
    tables = masks.of(machine)
    start = tables.states[machine.start]
    if start[MASK] == NO_MASK and not start[[SHARED, OWN, DECIDED]].any():
        raise GrammarError("no token of this model's vocabulary can begin a match")
    machine = replace(machine, max_depth=min(machine.max_depth, STACK_DEPTH))
    return Automaton(key, machine, tables)
