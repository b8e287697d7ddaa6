"""Compiles grammars to constraints in the background, and keeps automata in use on the device."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from msgspec import structs

from ...grammars import Automaton, BusyError, CompilerError, GrammarCompiler, GrammarError
from ..messages import DropGrammar, GrammarSpec, LoadGrammar
from .constraint import AutomatonConstraint, Constraint, MatcherConstraint

DEVICE_BYTES = 256 << 20  # bytes of all automata on the device, used or cached


@dataclass(slots=True, eq=False)
class _Loaded:
    id: int
    nbytes: int
    users: int = 0  # requests with a slot that use the automaton


class GrammarLoader:
    """Knows which automata the model process has, and how many requests use each.

    isolated: tenants share no compiled grammars, so no tenant learns from timing what others sent
    """

    def __init__(self, compiler: GrammarCompiler, *, isolated: bool = False) -> None:
        self._compiler = compiler
        self._isolated = isolated
        # loaded automata by their keys, least recently used first
        self._loaded: OrderedDict[str, _Loaded] = OrderedDict()
        self._nbytes = 0  # bytes of all loaded automata
        self._bytes_in_use = 0
        self._next_id = 0
        self._loads: list[LoadGrammar | DropGrammar] = []

    def take_loads(self) -> list[LoadGrammar | DropGrammar]:
        """Returns the messages that the model process needs before the next step."""
        loads, self._loads = self._loads, []
        return loads

    def submit(self, request: str, spec: GrammarSpec, closing: bool = False, tenant: str = "") -> None:
        """Queues a grammar for compiling. closing: whether closing texts are needed. tenant: pays for it."""
        spec = structs.replace(spec, closing=closing, scope=tenant if self._isolated else "")
        self._compiler.submit(request, spec, tenant=tenant)

    def cancel(self, request: str) -> None:
        self._compiler.cancel(request)

    def take_finished(self) -> Iterator[tuple[str, Constraint | GrammarError | CompilerError | BusyError]]:
        """Returns the requests whose grammars are ready, each with its own constraint or the error."""
        for request, compiled in self._compiler.finished():
            if isinstance(compiled, GrammarError | CompilerError | BusyError):
                yield request, compiled
            elif not isinstance(compiled, Automaton):
                yield request, MatcherConstraint(compiled.matcher(), compiled.left_out)
            elif compiled.nbytes > DEVICE_BYTES:
                yield request, GrammarError(_too_large(compiled.nbytes))
            else:
                yield request, AutomatonConstraint(compiled, self._compiler.spelled)

    def fits(self, constraint: Constraint | None) -> bool:
        """Whether `load` would succeed."""
        if not isinstance(constraint, AutomatonConstraint):
            return True
        automaton = constraint.automaton
        return automaton.key in self._loaded or self._bytes_in_use + automaton.nbytes <= DEVICE_BYTES

    def load(self, constraint: Constraint | None) -> bool:
        """Loads the automaton of a request that starts; False if automata in use leave too little memory."""
        if not isinstance(constraint, AutomatonConstraint):
            return True
        if not self.fits(constraint):
            return False
        automaton = constraint.automaton
        loaded = self._loaded.get(automaton.key)
        if loaded is None:
            self._free_memory(automaton.nbytes)
            self._next_id += 1
            loaded = self._loaded[automaton.key] = _Loaded(self._next_id, automaton.nbytes)
            self._nbytes += loaded.nbytes
            self._loads.append(LoadGrammar(loaded.id, automaton.tables.packed()))
        self._bytes_in_use += 0 if loaded.users else loaded.nbytes
        loaded.users += 1
        constraint.grammar = loaded.id
        self._loaded.move_to_end(automaton.key)
        return True

    def unload(self, constraint: Constraint | None) -> None:
        """Releases the automaton of a request that gives back its slot and that no step in flight names."""
        if isinstance(constraint, AutomatonConstraint) and constraint.grammar is not None:
            constraint.grammar = None
            loaded = self._loaded[constraint.automaton.key]
            loaded.users -= 1
            self._bytes_in_use -= 0 if loaded.users else loaded.nbytes
            self._loaded.move_to_end(constraint.automaton.key)

    def _free_memory(self, nbytes: int) -> None:
        """Drops unused automata, least recently used first, until `nbytes` fit."""
        while self._nbytes + nbytes > DEVICE_BYTES:
            key = next(key for key, loaded in self._loaded.items() if not loaded.users)
            dropped = self._loaded.pop(key)
            self._nbytes -= dropped.nbytes
            self._loads.append(DropGrammar(dropped.id))


def _too_large(nbytes: int) -> str:
    return (
        f"the grammar's tables take {nbytes:,} bytes, but may take at most {DEVICE_BYTES:,}; "
        "make the grammar smaller"
    )
