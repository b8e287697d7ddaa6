"""Byte automata of many grammars on the device: the tokens that a row may sample, and its next state.

A grammar's automaton is a table of states × byte classes, with a stack of return addresses where it needs
one. The pool stores all loaded grammars in flat tensors and numbers their states together, so that one kernel
steps rows of different grammars. A row's state and stack stay on the device.
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
