"""An automaton and the token masks of its states: all that the sampling kernel needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

from .errors import GrammarError, TooLargeError
from .stack_automaton import DEAD, MAX_DEPTH, StackAutomaton
from .stack_masks import StackMasks, StateMask

LISTED_SHARE = 16  # a list of tokens stands for a mask that would take this many times its bytes
_NO_TOKENS = np.zeros(0, np.int32)
_Key = TypeVar("_Key")
MAX_MASK_BYTES = 16 << 20  # 1,024 masks over 131k tokens; a regex for an e-mail address has 30


@dataclass(frozen=True, eq=False)
class Automaton:
    """`machine` with a mask for each of its states. `key` names the grammar.

    `masks[mask_of_state[state]]` has a bit for each token id that may come next (bit i % 32 of word
    i // 32), unless the stack decides; end-of-sequence ids have one where the text may end. What the stack
    decides, and where few tokens may come all of these, is list `context_of_state[state]` (-1: none),
    `context_tokens[context_offsets[list]:context_offsets[list + 1]]`: ids that look below the level where
    they begin, without a bit in the mask, then `opener_counts[list]` ids that have one but push or open, so
    that a nearly full stack refuses them.
    """

    key: str
    machine: StackAutomaton
    mask_of_state: NDArray[np.int32]  # [states]
    masks: NDArray[np.int32]  # [masks, ceil(vocab / 32)]
    context_of_state: NDArray[np.int32]  # [states]
    context_offsets: NDArray[np.int32]  # [lists + 1]
    context_tokens: NDArray[np.int32]
    opener_counts: NDArray[np.int32]  # [lists]
    left_out: tuple[tuple[str, str], ...] = ()
    """keyword and path of what a schema asks beyond it, where that is allowed"""

    @property
    def nbytes(self) -> int:
        """Of what the device holds."""
        lists = (self.context_of_state, self.context_offsets, self.context_tokens, self.opener_counts)
        return self.machine.nbytes + sum(table.nbytes for table in (self.mask_of_state, self.masks, *lists))

    def after(self, text: bytes) -> tuple[int, list[int]]:
        """The state, `DEAD` for none, and the stack after `text`."""
        state, stack = self.machine.start, list[int]()
        for byte in text:
            state = self.machine.step(state, stack, byte)
            if state == DEAD:
                break
        return state, stack


def with_masks(key: str, machine: StackAutomaton, masks: StackMasks) -> Automaton:
    """Adds token masks; equal masks and lists are kept once.

    Raises GrammarError if no token can begin a match, TooLargeError if the masks take too much memory.
    """
    gathered = _Gathered()
    for state in range(len(machine.accepting)):
        gathered.add(_listed(masks.of(machine, state)))
    automaton = gathered.automaton(key, replace(machine, max_depth=min(machine.max_depth, MAX_DEPTH)))
    first = automaton.masks[automaton.mask_of_state[machine.start]]
    if automaton.context_of_state[machine.start] < 0 and not first.any():
        raise GrammarError("no token of this model's vocabulary can begin a match")
    return automaton


def _listed(mask: StateMask) -> StateMask:
    """Few tokens are all left to the stack, which decides on each of them as it comes."""
    tokens = np.empty(len(mask.words) // LISTED_SHARE, np.int32)
    count = _tokens_of(mask.words.view(np.uint32), tokens)
    if count < 0:
        return mask
    context = np.concatenate([mask.context, tokens[:count]])
    return StateMask(np.zeros_like(mask.words), context, _NO_TOKENS)


@njit(cache=True, nogil=True)
def _tokens_of(words, tokens):  # type: ignore[no-untyped-def]
    """Writes the tokens of a mask; returns their number, -1 if there are more than `tokens` has room for."""
    found = 0
    for place in range(len(words)):
        if words[place] == 0:
            continue
        for bit in range(32):
            if words[place] >> np.uint32(bit) & np.uint32(1):
                if found == len(tokens):
                    return -1
                tokens[found] = 32 * place + bit
                found += 1
    return found


class _Gathered:
    """Masks of states in order, each kept once."""

    def __init__(self) -> None:
        self._masks: dict[bytes, int] = {}
        self._lists: dict[tuple[bytes, bytes], int] = {}
        self._mask_of_state: list[int] = []
        self._list_of_state: list[int] = []
        self._room = MAX_MASK_BYTES

    def add(self, mask: StateMask) -> None:
        self._mask_of_state.append(self._number(self._masks, mask.words.tobytes(), mask.words.nbytes))
        size = mask.context.nbytes + mask.openers.nbytes
        both = (mask.context.tobytes(), mask.openers.tobytes())
        self._list_of_state.append(self._number(self._lists, both, size) if size else -1)

    def automaton(self, key: str, machine: StackAutomaton) -> Automaton:
        sizes = [(len(context) + len(openers)) // 4 for context, openers in self._lists]
        joined = b"".join(part for both in self._lists for part in both)
        return Automaton(
            key=key,
            machine=machine,
            mask_of_state=np.array(self._mask_of_state, np.int32),
            masks=np.frombuffer(b"".join(self._masks), np.int32).reshape(len(self._masks), -1),
            context_of_state=np.array(self._list_of_state, np.int32),
            context_offsets=np.cumsum([0, *sizes]).astype(np.int32),
            context_tokens=np.frombuffer(joined, np.int32),
            opener_counts=np.array([len(openers) // 4 for _, openers in self._lists], np.int32),
        )

    def _number(self, known: dict[_Key, int], key: _Key, size: int) -> int:
        if key not in known:
            self._room -= size
            if self._room < 0:
                raise TooLargeError(f"more than {MAX_MASK_BYTES >> 20} MiB of masks")
            known[key] = len(known)
        return known[key]
