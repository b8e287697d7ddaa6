"""Runs sampling in every variant that a GPU compiles, so that no request waits for the compiler."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np
import torch

from ..automaton.pool import smallest_pool
from ..common.drafts import DraftRows
from . import sample
from .batch import LISTED
from .state import SamplingState, SlotSettings

GREEDY = SlotSettings(temperature=0.0)
SAMPLED = SlotSettings()
FILTERED = SlotSettings(top_k=10, top_p=0.9, min_p=0.01)


class Variant(NamedTuple):
    settings: SlotSettings
    automaton: bool
    logprobs: int | None


def variants() -> Iterator[Variant]:
    """Every variant, except numbers of log-probabilities that `LISTED` lacks."""
    edits: tuple[dict[int, float], ...] = ({}, {0: 1.0})
    kinds = product((GREEDY, SAMPLED, FILTERED), edits, (False, True), (None, *LISTED))
    for settings, bias, automaton, logprobs in kinds:
        yield Variant(replace(settings, logit_bias=bias), automaton, logprobs)


def warm_up_sampling(vocab: int, device: torch.device, *, with_drafts: bool = False) -> None:
    """Sample a row of `vocab` equal logits in every variant. with_drafts: also as in a step with drafts"""
    slots = nothing = np.zeros(1, np.int32)
    logits = torch.zeros(1, vocab, device=device)
    state, pool = SamplingState(1, vocab, device), smallest_pool(device, vocab, drafts=int(with_drafts))
    kinds = [None, DraftRows.without_drafts(1)] if with_drafts else [None]
    penalties = replace(SAMPLED, frequency_penalty=1.0)
    with_penalties = (
        [Variant(penalties, automaton, None) for automaton in (False, True)] if with_drafts else []
    )
    for (settings, automaton, logprobs), drafts in product([*variants(), *with_penalties], kinds):
        state.set(0, settings, nothing, nothing)
        rows = pool.rows(slots, drafts) if automaton else None
        mask = None if rows is None else pool.mask(rows)
        batch = state.gather(slots, mask, automata=rows, drafts=drafts)
        sampled = sample(logits, batch, logprobs)
        if drafts is not None:
            state.record_drafted(slots, drafts, sampled, pool.registers)
