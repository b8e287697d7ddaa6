"""Reads the answers of a process that builds automata.

The process has read a client's grammar, so its bytes are not trusted: they may contain an automaton, an
error, text or a number, and must not name any other class or function.
"""

from __future__ import annotations

import io
import pickle

from ...runtime.automaton_format import AutomatonTables
from ..machine.stack_automaton import StackAutomaton
from .automaton import Automaton

MAX_ANSWER = 1 << 30  # bytes
_OURS = (Automaton, AutomatonTables, StackAutomaton)
_PACKAGE = __name__.removesuffix("service.answers")
_NUMPY = {
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy._core.multiarray", "_reconstruct"),
}
_ALLOWED = {(each.__module__, each.__qualname__) for each in _OURS} | _NUMPY


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        if (module, name) in _ALLOWED:
            return super().find_class(module, name)
        if module.startswith(_PACKAGE) and name.isidentifier():
            found = super().find_class(module, name)
            if isinstance(found, type) and issubclass(found, Exception):
                return found
        raise pickle.UnpicklingError(f"an answer names {module}.{name}, which no answer needs")


def read_answer(data: bytes) -> object:
    """Decodes an answer. Raises UnpicklingError for a class or function that is not allowed, and other errors
    for garbled bytes."""
    return _Reader(io.BytesIO(data)).load()
