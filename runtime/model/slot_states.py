"""What the model process keeps of each slot between steps, beside its pages."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from ...kernels.automaton import NO_AUTOMATON, AutomatonPool
from ...kernels.sampling import SamplingBatch, TokenMask
from ...kernels.sampling.state import SamplingState, SlotSettings
from ...kernels.sampling.upload import upload
from ..messages import DropGrammar, LoadGrammar, SlotSetup
from ..vocabulary import Vocabulary

NO_GRAMMAR = -1
NONE = -1
"""log-probabilities not asked for"""


class SlotStates:
    """Sampling parameters and history, automaton states, which log-probabilities to report."""

    def __init__(
        self, slots: int, vocab_size: int, device: torch.device, load_vocabulary: Callable[[], Vocabulary]
    ) -> None:
        self.sampling = SamplingState(slots, vocab_size, device)
        self.logprobs = np.full(slots, NONE, np.int32)
        """alternatives to report with each sampled token"""
        self.prompt_logprobs = np.zeros(slots, np.int32)
        self._vocab_size = vocab_size
        self._load_vocabulary = load_vocabulary
        self._pool: AutomatonPool | None = None
        self._grammars = np.full(slots, NO_GRAMMAR, np.int32)
        self._states = torch.full((slots,), NO_AUTOMATON, dtype=torch.int32, device=device)

    def load_grammar(self, message: LoadGrammar) -> None:
        if self._pool is None:
            self._pool = self._new_pool()
        masks = np.frombuffer(message.masks, np.int32)
        mask_of_state = np.frombuffer(message.mask_of_state, np.int32)
        self._pool.load(
            message.grammar,
            np.frombuffer(message.class_of_byte, np.uint8),
            np.frombuffer(message.transitions, np.int32).reshape(len(mask_of_state), -1),
            mask_of_state,
            masks.reshape(-1, -(-self._vocab_size // 32)),
        )

    def drop_grammar(self, message: DropGrammar) -> None:
        assert self._pool is not None, "no grammar is loaded"
        self._pool.drop(message.grammar)

    def set_up(self, setup: SlotSetup) -> None:
        params = setup.sampling
        output = np.frombuffer(setup.output, np.int32) if setup.output else np.zeros(setup.position, np.int32)
        self.sampling.set(
            setup.slot, _settings(setup), prompt=np.frombuffer(setup.prompt, np.int32), output=output
        )
        self.logprobs[setup.slot] = NONE if params.logprobs is None else params.logprobs
        self.prompt_logprobs[setup.slot] = params.prompt_logprobs or 0
        had_grammar = self._grammars[setup.slot] != NO_GRAMMAR
        self._grammars[setup.slot] = NO_GRAMMAR if setup.grammar is None else setup.grammar
        if setup.grammar is not None:
            assert self._pool is not None, "no grammar is loaded"
            self._states[setup.slot] = self._pool.pooled_state(setup.grammar, setup.state)
        elif had_grammar:
            self._states[setup.slot] = NO_AUTOMATON

    def gather(self, slots: NDArray[np.int32], host_mask: TokenMask | None) -> SamplingBatch:
        """What sampling needs for the rows of `slots`."""
        mask = None
        if self._pool is not None and self._constrained(slots).any():
            (index,) = upload([slots], self._states.device)
            mask = self._pool.mask(self._states[index])
        return self.sampling.gather(slots, mask, host_mask)

    def record(self, slots: NDArray[np.int32], tokens: torch.Tensor) -> torch.Tensor | None:
        """Move distinct slots over their sampled tokens, int32 [rows].

        Returns the automaton states after them, int32 [rows], as the pool numbers them; None if none has any.
        """
        self.sampling.record(slots, tokens)
        if self._pool is None or not self._constrained(slots).any():
            return None
        (index,) = upload([slots], self._states.device)
        after = self._pool.advance(self._states[index], tokens)
        self._states[index] = after
        return after

    def grammar_states(self, slots: NDArray[np.int32], pooled: NDArray[np.int32]) -> NDArray[np.int32]:
        """The states as each slot's grammar numbers them, int32 [rows]; -1 for slots without one."""
        states = np.full(len(slots), -1, np.int32)
        for row in np.flatnonzero(self._constrained(slots)):
            assert self._pool is not None
            states[row] = self._pool.grammar_state(int(self._grammars[slots[row]]), int(pooled[row]))
        return states

    def _constrained(self, slots: NDArray[np.int32]) -> NDArray[np.bool_]:
        return np.asarray(self._grammars[slots] != NO_GRAMMAR)

    def _new_pool(self) -> AutomatonPool:
        vocabulary = self._load_vocabulary()
        assert vocabulary.size == self._vocab_size, (vocabulary.size, self._vocab_size)
        return AutomatonPool(self._states.device, vocabulary.offsets, vocabulary.data, list(vocabulary.eos))


def _settings(setup: SlotSetup) -> SlotSettings:
    params = setup.sampling
    return SlotSettings(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        seed=params.seed,
        logit_bias=params.logit_bias,
        min_tokens=params.min_tokens,
        stop_ids=np.frombuffer(setup.banned_tokens, np.int32).tolist(),
    )
