"""Reads the answers of a process that builds automata.

It has read a client's grammar, so its bytes are not trusted: they may hold an automaton, an error, text or a
number, and can name no other class or function.
"""

from __future__ import annotations

import io
import pickle

from . import errors
from .automaton import Automaton
from .masks.stack import MaskTables
from .row_packing import PackedRows
from .stack_automaton import StackAutomaton

MAX_ANSWER = 1 << 30  # bytes
_OURS = (Automaton, MaskTables, PackedRows, StackAutomaton)
_ERRORS = tuple(
    value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)
)
_NUMPY = {
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy._core.multiarray", "_reconstruct"),
}
_ALLOWED = {(each.__module__, each.__qualname__) for each in (*_OURS, *_ERRORS)} | _NUMPY


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"an answer names {module}.{name}, which no answer needs")
        return super().find_class(module, name)


def read_answer(data: bytes) -> object:
    """Raises UnpicklingError for a class or function that is not allowed, and more for garbled bytes."""
    return _Reader(io.BytesIO(data)).load()
