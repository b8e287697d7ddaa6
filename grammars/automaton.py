"""A byte-level automaton and the token masks of its states: all that the sampling kernel needs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .byte_automaton import ByteAutomaton
from .errors import GrammarError
from .token_trie import TokenTrie

DEAD = -1


@dataclass(frozen=True, eq=False)
class Automaton:
    """`transitions[state, class_of_byte[byte]]` is the next state, `DEAD` for none.

    `masks[mask_of_state[state]]` has a bit for each token id that may come next (bit i % 32 of word
    i // 32); the end-of-sequence ids are among them where the text may end. `key` names the grammar.
    """

    key: str
    start: int
    class_of_byte: NDArray[np.uint8]  # [256]
    transitions: NDArray[np.int32]  # [states, classes]
    mask_of_state: NDArray[np.int32]  # [states]
    masks: NDArray[np.int32]  # [masks, ceil(vocab / 32)]

    @property
    def nbytes(self) -> int:
        return self.transitions.nbytes + self.mask_of_state.nbytes + self.masks.nbytes


def with_masks(key: str, automaton: ByteAutomaton, trie: TokenTrie) -> Automaton:
    """Adds token masks; equal masks are kept once.

    Raises GrammarError if no token can begin a match, TooLargeError if the masks take too much memory.
    """
    unique: dict[bytes, int] = {}
    mask_of_state = np.empty(len(automaton.accepting), np.int32)
    for state, accepting in enumerate(automaton.accepting):
        mask = trie.mask(automaton.transitions, automaton.class_of_byte, state, bool(accepting))
        mask_of_state[state] = unique.setdefault(mask.tobytes(), len(unique))
        trie.check_room(len(unique))
    masks = np.frombuffer(b"".join(unique), np.int32).reshape(len(unique), -1)
    if not masks[mask_of_state[automaton.start]].any():
        raise GrammarError("no token of this model's vocabulary can begin a match")
    return Automaton(
        key=key,
        start=automaton.start,
        class_of_byte=automaton.class_of_byte,
        transitions=automaton.transitions,
        mask_of_state=mask_of_state,
        masks=masks,
    )
