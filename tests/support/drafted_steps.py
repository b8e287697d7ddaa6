"""Steps whose drafts come from a script, compared with steps without drafts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from arbora.kernels.common.drafts import Drafts
from arbora.runtime.messages import RowGroup, StepResult
from arbora.runtime.model.loading import load_model
from arbora.runtime.model.warm_up import ZeroDrafter
from arbora.runtime.sampling_params import SamplingParams
from byte_grammars import byte_vocabulary, nested
from numpy.typing import NDArray
from stack_automata import load_message
from step_driver import BIASED, FILTERED, GREEDY, PENALISED, StepDriver, packed, serve_config, unpacked

SLOTS, PAGE, CONTEXT = 6, 4, 128
PROMPTS = [np.random.default_rng(length).integers(0, 256, length).tolist() for length in (3, 40, 5, 21, 2, 9)]
REPORTED = msgspec.structs.replace(FILTERED, logprobs=3)
CONSTRAINED = SamplingParams(max_tokens=64, temperature=1.0, seed=4, logprobs=0)
REPEATING = msgspec.structs.replace(PENALISED, temperature=0.0, repetition_penalty=1.0, frequency_penalty=0.2)
KINDS = [GREEDY, REPORTED, PENALISED, BIASED, CONSTRAINED, REPEATING]

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


def start_driver(
    model: Path,
    kinds: Sequence[SamplingParams],
    speculate: int = 0,
    setups: Mapping[int, Mapping[str, Any]] = MappingProxyType({}),
    **fields: Any,
) -> StepDriver:
    """A driver whose slots have sampled a token each. setups: more fields of the slots' setups"""
    sizes = {"page_size": PAGE, "max_model_len": CONTEXT, "max_running": SLOTS, "speculate": speculate}
    loaded = load_model(serve_config(model, **{**sizes, "deterministic": True, **fields}), byte_vocabulary)
    driver = StepDriver(loaded.runner, loaded.ready)
    driver.runner.load_grammar(load_message(1, nested()))
    for slot, (prompt, params) in enumerate(zip(PROMPTS, kinds, strict=False)):
        start_slot(driver, slot, params, prompt, **setups.get(slot, {}))
    return driver


def start_slot(
    driver: StepDriver, slot: int, params: SamplingParams, prompt: Sequence[int], **setup: Any
) -> None:
    """Has a slot sample its first token."""
    grammar = 1 if params is CONSTRAINED else None
    driver.start(slot, params, prompt=packed(prompt), banned_tokens=packed([7, 9]), grammar=grammar, **setup)
    driver.run([driver.row(slot, prompt)])


def state_of(driver: StepDriver, slots: int) -> list[torch.Tensor]:
    states = driver.runner._states
    history = states.sampling.history
    positions = torch.from_numpy(states.sampling.positions.copy())
    lengths = torch.from_numpy(driver.runner._tables.lengths.copy())
    registers = states.registers.values[:slots].clone()
    return [states.sampling.last_tokens[:slots], registers, positions, lengths, history.output_counts]


def draft(driver: StepDriver, replies: Mapping[int, Sequence[Token]], guess: Guess) -> ScriptedDrafter:
    """Has the driver draft the replies, changed by `guess`."""
    script = {slot: [each.token for each in reply] for slot, reply in replies.items()}
    drafter = driver.runner._drafter = ScriptedDrafter(script, guess)
    return drafter


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
