"""A model in this process, with the server's own runner, kernels and pages, but without its scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np
import torch
from arbora.frontend.cli.main import build_parser, serve_config
from arbora.runtime.config import ServeConfig
from arbora.runtime.messages import Logprobs, Row, SlotSetup, StepPlan, StepResult
from arbora.runtime.model.devices import use_all_cores
from arbora.runtime.model.loading import load_model
from arbora.runtime.sampling_params import SamplingParams

SLOT = 0


def config_of(arguments: Sequence[str], context: int) -> ServeConfig:
    """For one sequence at a time of at most `context` tokens. `arguments` are those of `arbora serve`.

    Raises ConfigError.
    """
    limits = ["--max-running", "1", "--max-model-len", str(context)]
    return serve_config(vars(build_parser().parse_args(["serve", *arguments, *limits])), {})


class LoadedModel:
    """Raises ConfigError for a model that cannot be loaded. Later ArithmeticError for logits that are NaN."""

    def __init__(self, config: ServeConfig) -> None:
        use_all_cores()
        self._dtype = f"--dtype {config.dtype}"
        self._runner, self.ready, _ = load_model(config, _no_vocabulary)
        self._step = 0
        self._length = 0
        self._pages = 0

    def logprobs(self, tokens: Sequence[int], chunk: int) -> torch.Tensor:
        """float32 [len(tokens) - 1, vocab]: of every token after each of `tokens` but the last.

        `chunk` tokens are computed in a step.
        """
        size = self.ready.vocab_size
        self._begin(SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=size))
        parts = []
        for start in range(0, len(tokens) - 1, chunk):
            targets = tokens[start + 1 : start + chunk + 1]
            result = self._run(tokens[start : start + len(targets)], targets, samples=0)
            parts += [_by_token(report.logprobs, size) for report in result.prompt_logprobs]
        return torch.cat(parts)

    def reply(self, prompt: Sequence[int], ends: frozenset[int], most: int) -> list[int]:
        """The most likely token, one after the other, before the first of `ends` or at most `most`."""
        self._begin(SamplingParams(max_tokens=most, temperature=0.0))
        token = _only_token(self._run(prompt))
        reply: list[int] = []
        while token not in ends and len(reply) < most:
            reply.append(token)
            token = _only_token(self._run())
        return reply

    def _begin(self, sampling: SamplingParams) -> None:
        self._setups = [SlotSetup(slot=SLOT, sampling=sampling)]
        self._length = self._pages = 0

    def _run(self, tokens: Sequence[int] = (), targets: Sequence[int] = (), samples: int = 1) -> StepResult:
        """One step of one row; without `tokens` it continues from the token that was sampled last."""
        start, self._length = self._length, self._length + (len(tokens) or 1)
        given, self._pages = self._pages, -(-self._length // self.ready.page_size)
        row = Row(
            slot=SLOT,
            start=start,
            tokens=_packed(tokens),
            samples=samples,
            new_pages=(pages := _packed(range(given, self._pages))),
            new_window_pages=[pages] * (len(self.ready.groups) - 1),
            targets=_packed(targets),
        )
        self._step += 1
        setups, self._setups = self._setups, []
        result = self._runner.run(StepPlan(self._step, [row], setups), lambda: None)
        if result.errors:
            raise ArithmeticError(f"{self._dtype}: {result.errors[0].message}")
        return result


def _no_vocabulary() -> NoReturn:
    raise AssertionError("no grammar is loaded")


def _packed(tokens: Sequence[int]) -> bytes:
    return np.array(tokens, np.int32).tobytes()


def _only_token(result: StepResult) -> int:
    (token,) = np.frombuffer(result.tokens, np.int32).tolist()
    return int(token)


def _by_token(logprobs: Logprobs, vocab_size: int) -> torch.Tensor:
    """float32 [n, vocab] from a report whose alternatives are all tokens, in descending order."""
    ids = np.frombuffer(logprobs.top_ids, np.int32).reshape(-1, vocab_size)
    values = np.frombuffer(logprobs.top_values, np.float32).reshape(-1, vocab_size)
    table = np.empty(ids.shape, np.float32)
    np.put_along_axis(table, ids.astype(np.int64), values, axis=1)
    return torch.from_numpy(table)
