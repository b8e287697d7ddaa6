"""An automaton with its token masks: the data that the sampling kernel needs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ...runtime.automaton_format import AutomatonTables
from .closing import Closing
from .stack_automaton import StackAutomaton


@dataclass(frozen=True, eq=False)
class Automaton:
    """`machine` is used on the host; `tables` is the same automaton with token masks, for the device."""

    key: str
    machine: StackAutomaton
    tables: AutomatonTables
    left_out: tuple[tuple[str, str], ...] = ()
    """keyword and path of each constraint that is not enforced"""

    @property
    def nbytes(self) -> int:
        """Bytes of memory on the device."""
        return self.tables.nbytes

    @property
    def host_nbytes(self) -> int:
        """Bytes of memory in the scheduler: all tables, and the shortest exits once they are found."""
        exits = self.closing.nbytes if "closing" in vars(self) else 0
        return self.machine.nbytes + self.tables.nbytes + self.forced.nbytes + exits

    @cached_property
    def forced(self) -> NDArray[np.int16]:
        """The only next byte of each state, if there is just one (`StackAutomaton.forced`)."""
        return self.machine.forced()

    @cached_property
    def closing(self) -> Closing:
        """The shortest ends of replies. Finding them takes up to two seconds."""
        return Closing(self.machine)

    def find_shortest_exits(self) -> None:
        """Finds `closing` now, so that later uses need not wait."""
        _ = self.closing
