"""An automaton and the token masks of its states: all that the sampling kernel needs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .errors import GrammarError
from .stack_automaton import DEAD, MAX_DEPTH, StackAutomaton
from .stack_masks import EMPTY, MaskTables, StackMasks

STATE_BYTES = 44  # that the device keeps of a state beside its transitions


@dataclass(frozen=True, eq=False)
class Automaton:
    """`machine` with the masks of its states. `key` names the grammar."""

    key: str
    machine: StackAutomaton
    masks: MaskTables

    @property
    def nbytes(self) -> int:
        """Of what the device holds."""
        return self.machine.nbytes + self.masks.nbytes + STATE_BYTES * len(self.masks.mask_of_state)

    def after(self, text: bytes) -> tuple[int, list[int]]:
        """The state, `DEAD` for none, and the stack after `text`."""
        state, stack = self.machine.start, list[int]()
        for byte in text:
            state = self.machine.step(state, stack, byte)
            if state == DEAD:
                break
        return state, stack


def with_masks(key: str, machine: StackAutomaton, masks: StackMasks) -> Automaton:
    """Adds token masks.

    Raises GrammarError if no token can begin a match, TooLargeError if the masks take too much memory.
    """
    tables = masks.of(machine)
    if tables.mask_of_state[machine.start] == EMPTY and not tables.lists_of_state[machine.start].any():
        raise GrammarError("no token of this model's vocabulary can begin a match")
    return Automaton(key, replace(machine, max_depth=min(machine.max_depth, MAX_DEPTH)), tables)
