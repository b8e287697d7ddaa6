"""Drives a model's runner with plans made by hand: a scheduler without a tree, a queue or a policy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from arbora.runtime.config import ServeConfig
from arbora.runtime.errors import ConfigError
from arbora.runtime.messages import (
    Logprobs,
    ModelReady,
    PageCopy,
    Row,
    RowGroup,
    SlotSetup,
    StepMasks,
    StepPlan,
    StepResult,
)
from arbora.runtime.model.executor import DeviceState
from arbora.runtime.model.loading import load_model
from arbora.runtime.model.runner import Runner
from arbora.runtime.model.running_step import MasksSource
from arbora.runtime.sampling_params import SamplingParams
from arbora.runtime.vocabulary import Vocabulary
from numpy.typing import NDArray

GREEDY = SamplingParams(max_tokens=64, temperature=0.0)
FILTERED = SamplingParams(max_tokens=64, temperature=1.0, seed=5, top_k=20, top_p=0.9, min_p=0.02)
PENALISED = SamplingParams(
    max_tokens=64,
    temperature=1.3,
    seed=9,
    repetition_penalty=1.3,
    frequency_penalty=0.8,
    presence_penalty=0.3,
)
BIASED = SamplingParams(max_tokens=64, temperature=0.7, seed=1, logit_bias={3: 4.0, 200: -2.0}, min_tokens=3)


def no_masks() -> StepMasks | None:
    raise AssertionError("no masks were announced")


def no_vocabulary() -> Vocabulary:
    raise AssertionError("no grammar was announced")


def serve_config(model: Path, **fields: Any) -> ServeConfig:
    defaults = {"dtype": "float32", "kv_memory": 8 << 20, "max_running": 8}
    return ServeConfig(model=model, served_model_name="test", **{**defaults, **fields})


def refusal(model: Path, **fields: Any) -> str:
    """The error with which a model is not loaded."""
    try:
        load_model(serve_config(model, **fields), no_vocabulary)
    except ConfigError as error:
        return str(error)
    raise AssertionError(f"{model} was loaded")


def packed(tokens: Sequence[int]) -> bytes:
    return np.array(tokens, np.int32).tobytes()


def unpacked(data: bytes) -> list[int]:
    tokens: list[int] = np.frombuffer(data, np.int32).tolist()
    return tokens


def full_logprobs(logprobs: Logprobs, vocab_size: int) -> torch.Tensor:
    """float32 [n, vocab] from a report with every token as an alternative."""
    ids = np.frombuffer(logprobs.top_ids, np.int32).reshape(-1, vocab_size)
    values = np.frombuffer(logprobs.top_values, np.float32).reshape(-1, vocab_size)
    table = np.zeros(ids.shape, np.float32)
    np.put_along_axis(table, ids.astype(np.int64), values, axis=1)
    return torch.from_numpy(table)


class StepDriver:
    """Allocates pages in an order that leaves no slot's pages side by side, and never frees them."""

    def __init__(self, runner: Runner, ready: ModelReady) -> None:
        self.runner = runner
        self.ready = ready
        self.pages: dict[int, list[int]] = {}
        self.lengths: dict[int, int] = {}
        self._free = list(range(min(group.num_pages for group in ready.groups)))
        self._free = self._free[1::2] + self._free[::2]
        self._step = 0
        self._setups: list[SlotSetup] = []
        self._copies: list[PageCopy] = []
        self._unsent: dict[int, list[int]] = {}

    @classmethod
    def load(cls, model: Path, **fields: Any) -> StepDriver:
        loaded = load_model(serve_config(model, **fields), no_vocabulary)
        return cls(loaded.runner, loaded.ready)

    def start(self, slot: int, params: SamplingParams = GREEDY, **setup: Any) -> None:
        self._setups.append(SlotSetup(slot=slot, sampling=params, **setup))
        self.pages[slot], self._unsent[slot], self.lengths[slot] = [], [], 0

    def share(self, slot: int, source: int, tokens: int) -> None:
        """Begin `slot` with `tokens` of `source`'s: whole pages shared, the rest copied."""
        whole, rest = divmod(tokens, self.ready.page_size)
        self._give(slot, self.pages[source][:whole])
        if rest:
            copy = self._free.pop()
            groups = range(len(self.ready.groups))
            self._copies += [PageCopy(self.pages[source][whole], copy, group) for group in groups]
            self._give(slot, [copy])
        self.lengths[slot] = tokens

    def row(self, slot: int, tokens: Sequence[int] = (), **fields: Any) -> Row:
        """The next row of `slot`: a chunk, or the token that it sampled last."""
        start = self.lengths[slot] if len(tokens) else 0
        self.lengths[slot] += max(1, len(tokens)) + max(0, fields.get("samples", 1) - 1)
        while len(self.pages[slot]) * self.ready.page_size < self.lengths[slot]:
            self._give(slot, [self._free.pop()])
        pages, self._unsent[slot] = self._unsent[slot], []
        windows = [packed(pages)] * (len(self.ready.groups) - 1)
        return Row(slot, start, packed(tokens), new_pages=packed(pages), new_window_pages=windows, **fields)

    def run(
        self, rows: Sequence[Row], groups: Sequence[RowGroup] = (), masks: MasksSource = no_masks
    ) -> StepResult:
        self._step += 1
        plan = StepPlan(self._step, list(rows), self._setups, self._copies, list(groups))
        self._setups, self._copies = [], []
        result = self.runner.run(plan, masks)
        for row, count in zip(rows, unpacked(result.counts), strict=True):
            self.lengths[row.slot] -= row.samples - count
        return result

    def prefill(self, slot: int, tokens: Sequence[int], chunk: int = 1 << 30) -> int:
        """Compute a prompt in chunks; the first sampled token."""
        token = -1
        for at in range(0, len(tokens), chunk):
            last = at + chunk >= len(tokens)
            result = self.run([self.row(slot, tokens[at : at + chunk], samples=int(last))])
            token = unpacked(result.tokens)[0] if last else -1
        return token

    def decode(self, slots: Sequence[int], groups: Sequence[RowGroup] = ()) -> list[int]:
        return unpacked(self.run([self.row(slot) for slot in slots], groups).tokens)

    def prompt_logprobs(
        self, slot: int, tokens: Sequence[int], chunk: int, first: int = 1, cached: int = 0
    ) -> torch.Tensor:
        """float32 [n - first, vocab], of the tokens from position `first` on.

        The slot reports every token, and has the KV of `cached` tokens.
        """
        parts = []
        for at in range(cached, len(tokens), chunk):
            scored = max(at + 1, first)
            row = self.row(
                slot,
                tokens[at : at + chunk],
                targets=packed(tokens[scored : at + chunk + 1]),
                untargeted=scored - at - 1,
                samples=int(at + chunk >= len(tokens)),
            )
            parts += [
                full_logprobs(p.logprobs, self.ready.vocab_size) for p in self.run([row]).prompt_logprobs
            ]
        return torch.cat(parts)

    def _give(self, slot: int, pages: list[int]) -> None:
        self.pages[slot] += pages
        self._unsent[slot] += pages


def device_of(driver: StepDriver) -> DeviceState:
    """For another executor of the driver's runner."""
    runner = driver.runner
    return DeviceState(runner._model, runner._kvs, runner._tables, runner._states)


def tokens_of(array: NDArray[np.int64] | torch.Tensor) -> list[int]:
    return [int(token) for token in array]
