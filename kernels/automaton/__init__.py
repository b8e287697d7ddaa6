"""Byte-level automata of many grammars on the device: which tokens a state allows, and where a token leads.

A grammar's automaton is states × byte classes. The pool holds all loaded grammars in flat tensors and names
a state by one number across them, so that rows of different grammars are stepped by one kernel.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ..sampling.batch import TokenMask
from .arena import Arena

NO_AUTOMATON = -1
"""the state of a row without a grammar: nothing is masked, and it stays"""
DEAD = 0
"""the state after bytes that the grammar doesn't allow: every token is masked, and it stays"""

FIRST_STATES = 1024
FIRST_TRANSITIONS = 32 * FIRST_STATES
FIRST_MASKS = 64
FIRST_GRAMMARS = 8


@dataclass(frozen=True, slots=True)
class _Loaded:
    first_state: int
    states: int
    first_transition: int
    transitions: int
    first_mask: int
    masks: int
    class_map: int


class AutomatonPool:
    """Tables of the loaded grammars on one device.

    vocab_offsets: int32 [vocab + 1], the bytes of token i being vocab_bytes[offsets[i] : offsets[i + 1]];
    vocab_bytes: uint8; eos_ids: tokens that leave the state as it is (so do tokens without bytes).
    Loading more than fits doubles a table, which moves it: read the tables anew for each step.
    """

    def __init__(
        self,
        device: torch.device | str,
        vocab_offsets: NDArray[np.int32],
        vocab_bytes: NDArray[np.uint8],
        eos_ids: NDArray[np.int32] | list[int],
    ) -> None:
        device = torch.device(device)
        starts, ends = vocab_offsets[:-1].copy(), vocab_offsets[1:].copy()
        ends[eos_ids] = starts[eos_ids]
        self._spans = torch.from_numpy(np.stack([starts, ends], axis=1)).to(device)
        self._bytes = torch.from_numpy(vocab_bytes.copy()).to(device)
        words = -(-len(starts) // 32)
        self._transitions = Arena(FIRST_TRANSITIONS, (), torch.int32, device)
        self._states = Arena(FIRST_STATES, (3,), torch.int32, device)
        """for each state: first transition, class map, mask"""
        self._masks = Arena(FIRST_MASKS, (words,), torch.int32, device)
        self._class_maps = Arena(FIRST_GRAMMARS, (256,), torch.uint8, device)
        self._loaded: dict[int, _Loaded] = {}
        self._put_dead_state(words)

    def load(
        self,
        grammar_id: int,
        class_of_byte: NDArray[np.uint8],
        transitions: NDArray[np.int32],
        mask_of_state: NDArray[np.int32],
        masks: NDArray[np.int32],
    ) -> None:
        """Add a grammar under an id not loaded now.

        class_of_byte: [256]; transitions: [states, classes], the next state or -1; mask_of_state: [states],
        rows of masks [n ≥ 1, ceil(vocab / 32)], packed as in `TokenMask`, end-of-sequence bits included.
        """
        assert grammar_id not in self._loaded, grammar_id
        states, classes = transitions.shape
        class_map = self._class_maps.put(class_of_byte[None])
        first_mask = self._masks.put(masks.view(np.int32))
        first_transition = self._transitions.take(transitions.size)
        rows = np.empty((states, 3), np.int32)
        rows[:, 0] = first_transition + classes * np.arange(states)
        rows[:, 1] = class_map
        rows[:, 2] = first_mask + mask_of_state
        first_state = self._states.put(rows)
        pooled = np.where(transitions < 0, DEAD, transitions + first_state)
        self._transitions.write(first_transition, pooled.astype(np.int32).ravel())
        self._loaded[grammar_id] = _Loaded(
            first_state, states, first_transition, states * classes, first_mask, len(masks), class_map
        )

    def drop(self, grammar_id: int) -> None:
        """Free a grammar's space. No row may be in its states."""
        loaded = self._loaded.pop(grammar_id)
        self._states.free(loaded.first_state, loaded.states)
        self._transitions.free(loaded.first_transition, loaded.transitions)
        self._masks.free(loaded.first_mask, loaded.masks)
        self._class_maps.free(loaded.class_map, 1)

    def pooled_state(self, grammar_id: int, state: int) -> int:
        """The number under which the pool knows a grammar's state."""
        return self._loaded[grammar_id].first_state + state

    def grammar_state(self, grammar_id: int, pooled: int) -> int:
        """The inverse of pooled_state; -1 for DEAD."""
        return -1 if pooled == DEAD else pooled - self._loaded[grammar_id].first_state

    def mask(self, states: torch.Tensor) -> TokenMask:
        """What pooled states, int32 [rows], allow."""
        return TokenMask(self.mask_index(states), self._masks.tensor)

    def mask_index(self, states: torch.Tensor) -> torch.Tensor:
        """Rows of the pool's masks, int32 [rows], -1 where there is no automaton."""
        if states.is_cuda:
            from . import cuda

            return cuda.mask_index(states, self._states.tensor)
        masks = self._states.tensor[states.clamp_min(0).long(), 2]
        return torch.where(states < 0, -1, masks)

    def advance(self, states: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """The states, int32 [rows], after tokens, int32 [rows]."""
        tables = (
            *(self._spans, self._bytes),
            *(self._states.tensor, self._class_maps.tensor, self._transitions.tensor),
        )
        if states.is_cuda:
            from . import cuda

            return cuda.advance(states, tokens, *tables)
        from . import cpu

        return cpu.advance(states, tokens, *tables)

    def _put_dead_state(self, words: int) -> None:
        class_map = self._class_maps.put(np.zeros((1, 256), np.uint8))
        mask = self._masks.put(np.zeros((1, words), np.int32))
        transition = self._transitions.put(np.array([DEAD], np.int32))
        state = self._states.put(np.array([[transition, class_map, mask]], np.int32))
        assert state == DEAD
