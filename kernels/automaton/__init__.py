"""Byte automata of many grammars on the device: the tokens that a row may sample, and its next state.

The pool stores the tables of all loaded grammars one after the other, each as `automaton_format` describes
them, and where the tables of each grammar begin. So one kernel steps rows of different grammars. A row's
state and stack stay on the device.
"""

from .pool import AutomatonPool
from .rows import SlotRegisters

__all__ = ["AutomatonPool", "SlotRegisters"]
