"""From a request's grammar to its constraint: compiled off the loop, loaded on the device once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from ...grammars import Automaton, GrammarCompiler, GrammarError
from ..messages import DropGrammar, GrammarSpec, LoadGrammar
from .constraint import AutomatonConstraint, Constraint, MatcherConstraint

MAX_UNUSED = 32  # automata kept on the device for requests to come
MAX_UNUSED_BYTES = 256 << 20


@dataclass(slots=True, eq=False)
class _Loaded:
    id: int
    nbytes: int
    users: int = 0


class GrammarDesk:
    """Knows which automata the model process has, and who uses them."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self._loaded: OrderedDict[str, _Loaded] = OrderedDict()  # by the automaton's key, last used last
        self._keys: dict[int, str] = {}
        self._next_id = 0
        self._loads: list[LoadGrammar | DropGrammar] = []

    @property
    def pending(self) -> int:
        """Requests whose grammars are being compiled."""
        return self._compiler.pending

    def take_loads(self) -> list[LoadGrammar | DropGrammar]:
        """What the model process must do before the next step."""
        loads, self._loads = self._loads, []
        return loads

    def submit(self, request: str, spec: GrammarSpec) -> None:
        self._compiler.submit(request, spec.kind, spec.text, separators=spec.separators)

    def cancel(self, request: str) -> None:
        self._compiler.cancel(request)

    def finished(self) -> Iterator[tuple[str, Constraint | GrammarError]]:
        """The requests whose grammars are ready, with a constraint of their own, or refused."""
        for request, compiled in self._compiler.finished():
            if isinstance(compiled, GrammarError):
                yield request, compiled
            elif isinstance(compiled, Automaton):
                yield request, AutomatonConstraint(self._load(compiled), compiled, self._compiler.spelled)
            else:
                yield request, MatcherConstraint(compiled.matcher(), compiled.left_out)

    def release(self, constraint: Constraint) -> None:
        """Its request is over; no step in flight names it."""
        if constraint.grammar is not None:
            key = self._keys[constraint.grammar]
            self._loaded[key].users -= 1
            self._loaded.move_to_end(key)
            self._drop_unused()

    def _load(self, automaton: Automaton) -> int:
        loaded = self._loaded.get(automaton.key)
        if loaded is None:
            self._next_id += 1
            loaded = self._loaded[automaton.key] = _Loaded(self._next_id, automaton.nbytes)
            self._keys[loaded.id] = automaton.key
            self._loads.append(
                LoadGrammar(
                    grammar=loaded.id,
                    class_of_byte=automaton.machine.class_of_byte.tobytes(),
                    transitions=automaton.machine.transitions.tobytes(),
                    mask_of_state=automaton.mask_of_state.tobytes(),
                    masks=automaton.masks.tobytes(),
                    actions=automaton.machine.actions.tobytes(),
                    returns=automaton.machine.returns.tobytes(),
                    context_of_state=automaton.context_of_state.tobytes(),
                    context_offsets=automaton.context_offsets.tobytes(),
                    context_tokens=automaton.context_tokens.tobytes(),
                    opener_counts=automaton.opener_counts.tobytes(),
                )
            )
        loaded.users += 1
        self._loaded.move_to_end(automaton.key)
        return loaded.id

    def _drop_unused(self) -> None:
        unused = [loaded for loaded in self._loaded.values() if not loaded.users]
        nbytes = sum(loaded.nbytes for loaded in unused)
        for number, loaded in enumerate(unused):
            if len(unused) - number <= MAX_UNUSED and nbytes <= MAX_UNUSED_BYTES:
                return
            nbytes -= loaded.nbytes
            del self._loaded[self._keys.pop(loaded.id)]
            self._loads.append(DropGrammar(loaded.id))
