"""An automaton with the token masks of its states: the data that the sampling kernel needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..errors import GrammarError
from ..machine.closing import Closing
from ..machine.packed_rows import PackedRows, packed
from ..machine.stack_automaton import MAX_DEPTH, StackAutomaton
from ..masks.stack import EMPTY, MaskTables, StackMasks

STATE_BYTES = 28  # of device memory for each state
LIST_BYTES = 16  # of device memory for each list, without its tokens


@dataclass(frozen=True, eq=False)
class Automaton:
    """`machine` with the masks of its states, and with its transitions as the device has them (`rows`)."""

    key: str
    machine: StackAutomaton
    masks: MaskTables
    rows: PackedRows
    left_out: tuple[tuple[str, str], ...] = ()
    """Keyword and path of each constraint that is not enforced."""

    @property
    def nbytes(self) -> int:
        """The bytes on the device."""
        states, lists = len(self.masks.mask_of_state), len(self.masks.opener_counts)
        actions = self.machine.actions.nbytes + self.machine.returns.nbytes
        tables = self.masks.nbytes + self.rows.nbytes + actions
        return tables + STATE_BYTES * states + LIST_BYTES * lists

    @property
    def host_nbytes(self) -> int:
        """The bytes in the scheduler: every table, and the shortest exits if they were found."""
        parts = (self.machine, self.masks, self.rows)
        fields = [field for part in parts for field in vars(part).values()]
        tables = sum(field.nbytes for field in fields if isinstance(field, np.ndarray))
        exits = self.closing.nbytes if "closing" in vars(self) else 0
        return tables + self.forced.nbytes + exits

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
    if tables.mask_of_state[machine.start] == EMPTY and not tables.lists_of_state[machine.start].any():
        raise GrammarError("no token of this model's vocabulary can begin a match")
    machine = replace(machine, max_depth=min(machine.max_depth, MAX_DEPTH))
    return Automaton(key, machine, tables, packed(machine.transitions, machine.like_state))
