"""Steps whose drafts come from a script, compared with steps without drafts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from arbora.kernels.common.drafts import Drafts
from arbora.runtime.messages import RowGroup, StepResult
from arbora.runtime.model.warm_up import ZeroDrafter
from numpy.typing import NDArray
from step_driver import StepDriver, unpacked

Guess = Callable[[list[int]], list[int]]
"""changes the right tokens into a draft"""


class Token(NamedTuple):
    token: int
    state: int
    logprob: bytes  # float32; empty without log-probabilities
    top_ids: bytes
    top_values: bytes


@dataclass
class ScriptedDrafter(ZeroDrafter):
    """Drafts what the slots will sample, changed by `guess`."""

    replies: Mapping[int, Sequence[int]]
    guess: Guess
    known: dict[int, int] = field(default_factory=dict)  # number of tokens that each slot has sampled
    accepted: int = 0
    drafted: int = 0

    def propose(self, slots: NDArray[np.int32], most: NDArray[np.int32]) -> Drafts:
        drafts = []
        for slot, limit in zip(slots.tolist(), most.tolist(), strict=True):
            at = self.known.get(slot, 0)
            right = list(self.replies.get(slot, ())[at : at + limit])
            drafts.append(self.guess(right)[:limit] if right and limit else [])
        counts = np.array([len(draft) for draft in drafts], np.int32)
        self.drafted += int(counts.sum())
        tokens = np.array([token for draft in drafts for token in draft], np.int32)
        return Drafts(slots, counts, tokens, np.zeros_like(counts), np.zeros_like(counts))


def right(tokens: list[int]) -> list[int]:
    return tokens


def wrong(tokens: list[int]) -> list[int]:
    return [(token + 1) % 200 for token in tokens]


def half_right(tokens: list[int]) -> list[int]:
    half = len(tokens) // 2
    return tokens[:half] + wrong(tokens[half:])


def read_tokens(result: StepResult, slots: Sequence[int]) -> dict[int, list[Token]]:
    """The tokens of each row of a step. slots: of its rows"""
    logprobs = {(part.slot, part.offset): part.logprobs for part in result.logprobs}
    left = zip(unpacked(result.tokens), unpacked(result.states), strict=True)
    read: dict[int, list[Token]] = {}
    for slot, count in zip(slots, unpacked(result.counts), strict=True):
        read[slot] = []
        for offset in range(count):
            part = logprobs.get((slot, offset))
            parts = (b"", b"", b"") if part is None else (part.chosen, part.top_ids, part.top_values)
            read[slot].append(Token(*next(left), *parts))
    return read


def decode(
    driver: StepDriver,
    slots: Sequence[int],
    tokens: int,
    samples: int = 1,
    groups: Sequence[RowGroup] = (),
) -> dict[int, list[Token]]:
    """Decodes until each slot has sampled `tokens` tokens, in rows that sample at most `samples`. The
    drafter of the driver's runner, if it has any, knows what was sampled."""
    drafter = driver.runner._drafter
    found: dict[int, list[Token]] = {slot: [] for slot in slots}
    while left := [slot for slot in slots if len(found[slot]) < tokens]:
        most = {slot: min(samples, tokens - len(found[slot])) for slot in left}
        of_all = groups if len(left) == len(slots) else ()
        result = driver.run([driver.row(slot, samples=most[slot]) for slot in left], of_all)
        assert not result.errors, result.errors
        for slot, sampled in read_tokens(result, left).items():
            found[slot] += sampled
            if isinstance(drafter, ScriptedDrafter):
                drafter.known[slot] = drafter.known.get(slot, 0) + len(sampled)
                drafter.accepted += len(sampled) - 1
    return found
