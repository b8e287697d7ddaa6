"""The results of sampling in one tensor, so that one copy moves them to the host."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from ...runtime.automaton_format import NO_AUTOMATON
from .batch import Sampled

INTEGERS = 3
"""int32 columns per row: token, bad, state"""


@dataclass(frozen=True)
class PackedResults:
    buffer: torch.Tensor
    """int32: tokens, bad and states of `capacity` rows each, then log-probabilities, ids and
    log-probabilities of `alternatives` tokens for each row"""
    capacity: int
    alternatives: int | None
    """reported alternatives of each row; None: no log-probabilities"""

    @staticmethod
    def empty(capacity: int, alternatives: int | None, device: torch.device) -> "PackedResults":
        columns = INTEGERS if alternatives is None else INTEGERS + 1 + 2 * alternatives
        buffer = torch.zeros(columns * capacity, dtype=torch.int32, device=device)
        return PackedResults(buffer, capacity, alternatives)

    @staticmethod
    def pack(sampled: Sampled) -> "PackedResults":
        tokens = sampled.tokens
        states = torch.full_like(tokens, NO_AUTOMATON) if sampled.states is None else sampled.states
        parts, alternatives = [tokens, sampled.bad, states], None
        if sampled.logprobs is not None and sampled.top_ids is not None and sampled.top_logprobs is not None:
            alternatives = sampled.top_ids.shape[1]
            logprobs = sampled.logprobs.view(torch.int32), sampled.top_logprobs.view(torch.int32).view(-1)
            parts += [logprobs[0], sampled.top_ids.view(-1), logprobs[1]]
        return PackedResults(torch.cat(parts), len(tokens), alternatives)

    def on(self, buffer: torch.Tensor) -> "PackedResults":
        """The same results in a copy of the buffer."""
        return replace(self, buffer=buffer)

    def integers(self, count: int) -> NDArray[np.int32]:
        """The tokens, bad and states of the first `count` rows, on the host: int32 [INTEGERS, count]."""
        columns: NDArray[np.int32] = self.buffer.numpy()[: INTEGERS * self.capacity]
        return columns.reshape(INTEGERS, self.capacity)[:, :count]

    def rows(self, count: int) -> Sampled:
        """Views of the results of the first `count` rows."""
        buffer, capacity, alternatives = self.buffer, self.capacity, self.alternatives
        tokens, bad, states = (buffer[at * capacity :][:count] for at in range(INTEGERS))
        if alternatives is None:
            return Sampled(tokens, bad, None, None, None, states)
        logprobs, floats = buffer[INTEGERS * capacity :], buffer.view(torch.float32)
        at = (INTEGERS + 1) * capacity
        ids = buffer[at:][: count * alternatives].view(count, alternatives)
        values = floats[at + alternatives * capacity :][: count * alternatives].view(count, alternatives)
        return Sampled(tokens, bad, logprobs[:count].view(torch.float32), ids, values, states)
