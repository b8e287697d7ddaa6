"""Byte-level automata of many grammars on the device: which tokens a row may sample, and where they lead.

A grammar's automaton is states × byte classes, with a stack of return addresses where it needs one. The pool
holds all loaded grammars in flat tensors and names a state by one number across them, so that rows of
different grammars are stepped by one kernel. A row's state and stack stay on the device.
"""

from .layout import ACTION_COLUMNS, DEAD, NO_AUTOMATON, STACK_DEPTH
from .pool import AutomatonPool
from .registers import SlotRegisters
from .tables import Tables

__all__ = [
    "ACTION_COLUMNS",
    "DEAD",
    "NO_AUTOMATON",
    "STACK_DEPTH",
    "AutomatonPool",
    "SlotRegisters",
    "Tables",
]
