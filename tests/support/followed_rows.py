"""Rows of the fake model that automata follow, stepped in plain Python by the messages."""

from __future__ import annotations

import numpy as np
from arbora.kernels.automaton import ACTION_COLUMNS, Tables
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
        self.grammars[message.grammar] = Grammar(
            Tables(
                class_of_byte=np.frombuffer(message.class_of_byte, np.uint8),
                row_starts=np.frombuffer(message.row_starts, np.int32),
                default_state=np.frombuffer(message.default_state, np.int32),
                entries=np.frombuffer(message.entries, np.int32),
                owners=np.frombuffer(message.owners, np.int32),
                mask_of_state=np.frombuffer(message.mask_of_state, np.int32),
                masks=np.frombuffer(message.masks, np.int32).reshape(-1, VOCAB // 32),
                lists_of_state=np.frombuffer(message.lists_of_state, np.int32).reshape(-1, 3),
                list_offsets=np.frombuffer(message.list_offsets, np.int32),
                list_tokens=np.frombuffer(message.list_tokens, np.int32),
                opener_counts=np.frombuffer(message.opener_counts, np.int32),
                actions=np.frombuffer(message.actions, np.int32).reshape(-1, ACTION_COLUMNS),
                returns=np.frombuffer(message.returns, np.int32),
            )
        )

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
