"""Steps the automata of the fake model's rows in plain Python, as the messages say."""

from __future__ import annotations

import numpy as np
from arbora.runtime.automaton_format import unpacked
from arbora.runtime.messages import LoadGrammar, SlotSetup
from fake_model import EOS, VOCAB, unpack
from numpy.typing import NDArray
from stack_automata import Configuration, Grammar


class FollowedRows:
    """Token i is byte i; the end is allowed where the stack is empty, if given only in states `accepting`."""

    def __init__(self, accepting: NDArray[np.bool_] | None = None) -> None:
        self.accepting = accepting
        self.grammars: dict[int, Grammar] = {}
        self.slots: dict[int, tuple[Grammar, Configuration]] = {}

    def load(self, message: LoadGrammar) -> None:
        self.grammars[message.grammar] = Grammar(unpacked(message.tables))

    def set_up(self, setup: SlotSetup) -> None:
        assert setup.grammar is not None
        at = Configuration(setup.state, tuple(unpack(setup.stack)))
        self.slots[setup.slot] = (self.grammars[setup.grammar], at)

    def choose(self, slot: int, number: int) -> tuple[int, int]:
        grammar, at = self.slots[slot]
        after = {token: grammar.after_byte(at, token) for token in range(VOCAB) if token != EOS}
        allowed = [token for token, there in after.items() if there.state >= 0]
        may_end = not at.stack and (self.accepting is None or self.accepting[at.state])
        allowed += [EOS] if may_end else []
        token = allowed[number % len(allowed)]
        self.slots[slot] = (grammar, after.get(token, at))
        return token, self.slots[slot][1].state
