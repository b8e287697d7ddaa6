"""The state of each slot between steps, beside its pages."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from ...kernels.adapters import NO_ADAPTER
from ...kernels.automaton import AutomatonPool, SlotRegisters
from ...kernels.automaton.layout import TABLES
from ...kernels.common.drafts import DraftRows, Drafts
from ...kernels.sampling import Sampled, SamplingBatch, TokenMask
from ...kernels.sampling.state import SamplingState, SlotSettings
from ..automaton_format import unpacked
from ..messages import DropGrammar, LoadGrammar, SlotSetup
from ..vocabulary import Vocabulary

NO_TABLES = np.zeros(TABLES, np.int64)
NONE = -1
"""in place of a number of alternatives: no log-probabilities are requested"""


class SlotStates:
    """Sampling parameters and history, automaton states, and the requested log-probabilities."""

    def __init__(
        self,
        slots: int,
        vocab_size: int,
        device: torch.device,
        load_vocabulary: Callable[[], Vocabulary],
        max_drafts: int = 0,
    ) -> None:
        """max_drafts: how many drafts a step may have in all; 0: none"""
        self.sampling = SamplingState(slots, vocab_size, device)
        self.registers = SlotRegisters(slots, vocab_size, device, max_drafts)
        self.max_drafts = max_drafts
        self.undrafted = np.zeros(slots, np.bool_)
        """[slots]: whether the slot's next token must be sampled without drafts, with which it failed"""
        self.logprobs = np.full(slots, NONE, np.int32)
        """number of alternatives to report with each sampled token, by slot"""
        self.prompt_logprobs = np.zeros(slots, np.int32)
        self.adapters = np.full(slots, NO_ADAPTER, np.int32)
        """place of each slot's adapter"""
        self.vocab_size = vocab_size
        self._load_vocabulary = load_vocabulary
        self._pool: AutomatonPool | None = None
        self._device = device

    def load_grammar(self, message: LoadGrammar) -> None:
        if self._pool is None:
            self._pool = self._new_pool()
        self._pool.load(message.grammar, unpacked(message.tables))

    def drop_grammar(self, message: DropGrammar) -> None:
        assert self._pool is not None, "no grammar is loaded"
        self._pool.drop(message.grammar)

    def set_up(self, setup: SlotSetup) -> None:
        params = setup.sampling
        self.undrafted[setup.slot] = False
        output = np.frombuffer(setup.output, np.int32) if setup.output else np.zeros(setup.position, np.int32)
        self.sampling.set(
            setup.slot, _settings(setup), prompt=np.frombuffer(setup.prompt, np.int32), output=output
        )
        self.logprobs[setup.slot] = NONE if params.logprobs is None else params.logprobs
        self.prompt_logprobs[setup.slot] = params.prompt_logprobs or 0
        self.adapters[setup.slot] = NO_ADAPTER if setup.adapter is None else setup.adapter
        if setup.grammar is not None:
            assert self._pool is not None, "no grammar is loaded"
            self._pool.enter(setup.slot, setup.grammar, setup.state, _ints(setup.stack).tolist())
        elif self._pool is not None and self.registers.follows(setup.slot):
            self._pool.leave(setup.slot)

    def gather(
        self, slots: NDArray[np.int32], host_mask: TokenMask | None, drafts: DraftRows | None = None
    ) -> SamplingBatch:
        """The sampling inputs for rows of `slots`, which are distinct if no slot has drafts. Sampling
        advances the automata of the rows."""
        if self._pool is None or not self.registers.any_follows(slots):
            return self.sampling.gather(slots, host_mask=host_mask, drafts=drafts)
        rows = self._pool.rows(slots, drafts)
        return self.sampling.gather(slots, self._pool.mask(rows), host_mask, rows, drafts)

    def record(self, slots: NDArray[np.int32], sampled: Sampled, drafts: DraftRows | None) -> None:
        """Adds the sampled tokens that are kept to the outputs of slots."""
        if drafts is None:
            self.sampling.record(slots, sampled.tokens)
        else:
            self.sampling.record_drafted(slots, drafts, sampled, self.registers)

    def step_ahead(self, slots: NDArray[np.int32], drafts: DraftRows) -> None:
        """Writes to `SlotRegisters.ahead` the state of each row's automaton after the drafts before it."""
        if self._pool is not None:
            self._pool.rows(slots, drafts)

    def cut_drafts(self, drafts: Drafts) -> Drafts:
        """The drafts up to those that their slots' automata do not allow, without those of slots that must
        have none."""
        must_have_none = self.undrafted[drafts.slots]
        if must_have_none.any():
            drafts = drafts.cut(np.where(must_have_none, np.int32(0), drafts.counts))
        if self._pool is None or not self.registers.any_follows(drafts.slots):
            return drafts
        return drafts.cut(self._pool.count_live(drafts))

    def write_masks(self, slots: NDArray[np.int32], drafts: DraftRows | None) -> None:
        """On CUDA, writes the masks of the automata of a step's rows, which a sampling graph reads."""
        if self._pool is not None and (drafts is not None or self.registers.any_follows(slots)):
            self._pool.mask(self._pool.rows(slots, drafts))

    def table_addresses(self) -> NDArray[np.int64]:
        """Addresses of the automata's tables; before the first grammar, zeros that no kernel reads."""
        return NO_TABLES if self._pool is None else self._pool.addresses

    @property
    def own_masks(self) -> int:
        return 0 if self._pool is None else self._pool.own_masks

    def _new_pool(self) -> AutomatonPool:
        vocabulary = self._load_vocabulary()
        assert vocabulary.size == self.vocab_size, (vocabulary.size, self.vocab_size)
        spelled = vocabulary.for_automata()
        return AutomatonPool(self._device, self.registers, spelled.offsets, spelled.data, list(spelled.eos))


def _ints(data: bytes) -> NDArray[np.int32]:
    return np.frombuffer(data, np.int32)


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
