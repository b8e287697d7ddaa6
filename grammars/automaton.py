"""A byte-level automaton and the token masks of its states: all that the sampling kernel needs."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .byte_automaton import ByteAutomaton
from .errors import GrammarError
from .token_trie import TokenTrie

DEAD = -1
STACK_DEPTH = 31  # up to which the kernels push; a call may take one place more
PUSH, POP, CALL = 0, 1, 2


def _none() -> NDArray[np.int32]:
    return np.zeros(0, np.int32)


def _no_actions() -> NDArray[np.int32]:
    return np.zeros((0, 3), np.int32)


@dataclass(frozen=True, eq=False)
class Automaton:
    """`transitions[state, class_of_byte[byte]]` is the next state, `DEAD` for none, -2 - a for action a.

    Action (PUSH, target, operand) pushes `operand` and goes to `target`; (POP, -, operand) pops r and
    goes to `returns[r + operand]`, which may be `DEAD`. A push onto a full stack and a pop of an empty
    one lead nowhere. (CALL, target, operand) pushes too, and may do so once onto a full stack. The text
    may end in states where the end-of-sequence ids are in the mask; the stack is empty there.

    `masks[mask_of_state[state]]` has a bit for each token id that may come next (bit i % 32 of word
    i // 32), unless the stack decides. What it decides is list `context_of_state[state]` (-1: none),
    `context_tokens[context_offsets[list]:context_offsets[list + 1]]`: ids that pop below the level where
    they begin, without a bit in the mask, then `opener_counts[list]` ids that have one but push, so that
    a nearly full stack refuses them. Automata without a stack have no actions and no lists. `key` names
    the grammar.
    """

    key: str
    start: int
    class_of_byte: NDArray[np.uint8]  # [256]
    transitions: NDArray[np.int32]  # [states, classes]
    mask_of_state: NDArray[np.int32]  # [states]
    masks: NDArray[np.int32]  # [masks, ceil(vocab / 32)]
    actions: NDArray[np.int32] = field(default_factory=_no_actions)  # [actions, 3]
    returns: NDArray[np.int32] = field(default_factory=_none)
    context_of_state: NDArray[np.int32] = field(default_factory=_none)  # [states], empty without lists
    context_offsets: NDArray[np.int32] = field(default_factory=_none)  # [lists + 1]
    context_tokens: NDArray[np.int32] = field(default_factory=_none)
    opener_counts: NDArray[np.int32] = field(default_factory=_none)  # [lists]

    @property
    def nbytes(self) -> int:
        stack = self.actions.nbytes + self.returns.nbytes
        context = self.context_of_state.nbytes + self.context_offsets.nbytes + self.context_tokens.nbytes
        context += self.opener_counts.nbytes
        return self.transitions.nbytes + self.mask_of_state.nbytes + self.masks.nbytes + stack + context

    def after(self, text: bytes) -> tuple[int, list[int]]:
        """The state, `DEAD` for none, and the stack after `text`."""
        state, stack = self.start, list[int]()
        for byte_class in self.class_of_byte[np.frombuffer(text, np.uint8)].tolist():
            state = self.transitions.item(state, byte_class)
            if state < DEAD:
                state = self._act(-2 - state, stack)
            if state == DEAD:
                break
        return state, stack

    def _act(self, action: int, stack: list[int]) -> int:
        kind, target, operand = self.actions[action].tolist()
        if kind == POP:
            return self.returns.item(stack.pop() + operand) if stack else DEAD
        if len(stack) >= STACK_DEPTH + (kind == CALL):
            return DEAD
        stack.append(operand)
        return int(target)


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
