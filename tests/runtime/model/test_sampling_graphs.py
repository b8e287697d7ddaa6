"""Sampling replayed in buffers of fixed size (interpreted without a GPU), against sampling on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch
from arbora.kernels.automaton import pool as automaton_pool
from arbora.kernels.sampling import fixed_sampling
from arbora.kernels.sampling.batch import HostMask
from arbora.kernels.sampling.packed_results import PackedResults
from arbora.runtime.messages import StepMasks, StepResult
from arbora.runtime.model import sampling_graphs
from arbora.runtime.model.capture import Captures
from arbora.runtime.model.executor import EagerExecutor
from arbora.runtime.model.input_batch import StepInputs
from arbora.runtime.model.loading import load_model
from arbora.runtime.model.running_step import NOTHING_ALLOWED
from arbora.runtime.model.sampling_graphs import SamplingGraphs
from arbora.runtime.sampling_params import SamplingParams
from byte_grammars import EOS, bits, byte_vocabulary, nested
from checkpoints import VOCAB_SIZE
from recorded_launches import capture
from stack_automata import load_message
from step_driver import (
    BIASED,
    FILTERED,
    GREEDY,
    PENALISED,
    StepDriver,
    device_of,
    packed,
    serve_config,
    unpacked,
)
from triton_device import DEVICE, cache_as_on_a_gpu, triton_kernels  # noqa: F401

T = TypeVar("T")
SLOTS = 6
PROMPT = np.random.default_rng(0).integers(0, 256, 5).tolist()
SAMPLED = SamplingParams(max_tokens=64, temperature=1.0, seed=3)


class Replaying(EagerExecutor):
    """Samples with graphs, and notes how many rows were replayed."""

    def __init__(self, driver: StepDriver, graphs: SamplingGraphs, replayed: list[int]) -> None:
        super().__init__(device_of(driver))
        self._graphs, self._replayed = graphs, replayed

    def sample(self, inputs: StepInputs, hidden: torch.Tensor, mask: HostMask | None) -> PackedResults:
        results = self._graphs.sample(inputs, hidden, mask)
        if results is None:
            return super().sample(inputs, hidden, mask)
        self._replayed.append(len(inputs.sampled_slots))
        return results


class Twins:
    """Runs the same steps on the CPU and, with replayed sampling, on the CUDA path."""

    def __init__(self, model: Path, slots: int = SLOTS) -> None:
        self.replayed: list[int] = []
        self.expected, self.driver = (started(model, device, slots) for device in ("cpu", DEVICE.type))
        runner = self.driver.runner
        hidden = torch.zeros(slots, runner._model.config.hidden_size, device=DEVICE)
        with triton_kernels(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(sampling_graphs, "choose_sizes", lambda most: sorted({2, most}))
            self._graphs = SamplingGraphs(runner._model, runner._states, hidden, Captures(capture()))
        runner._executor = Replaying(self.driver, self._graphs, self.replayed)

    def _both(self, work: Callable[[StepDriver], T]) -> tuple[T, T]:
        """What `work` returns on the CPU and on the CUDA path."""
        expected = work(self.expected)
        with triton_kernels():
            return expected, work(self.driver)

    def load_grammar(self, number: int) -> None:
        self._both(lambda driver: driver.runner.load_grammar(load_message(number, nested())))

    def start(self, slot: int, params: SamplingParams = GREEDY, **setup: Any) -> None:
        self._both(lambda driver: driver.start(slot, params, **setup))

    def step(self, slots: list[int], tokens: list[int] | None = None, **masks: Any) -> StepResult:
        """Runs a step and checks that both sides give the same."""
        fields = {"host_mask": True} if masks else {}
        want, got = self._both(
            lambda driver: driver.run([driver.row(slot, tokens or [], **fields) for slot in slots], **masks)
        )
        assert (unpacked(got.counts), unpacked(got.tokens)) == (unpacked(want.counts), unpacked(want.tokens))
        assert unpacked(got.states) == unpacked(want.states)
        assert [(error.slot, error.message) for error in got.errors] == [
            (error.slot, error.message) for error in want.errors
        ]
        assert_same_logprobs(got, want)
        return got


def assert_same_logprobs(got: StepResult, want: StepResult) -> None:
    assert [(row.slot, row.logprobs.top_ids) for row in got.logprobs] == [
        (row.slot, row.logprobs.top_ids) for row in want.logprobs
    ]
    for one, other in zip(got.logprobs, want.logprobs, strict=True):
        for mine, theirs in (
            (one.logprobs.chosen, other.logprobs.chosen),
            (one.logprobs.top_values, other.logprobs.top_values),
        ):
            np.testing.assert_allclose(
                np.frombuffer(mine, np.float32), np.frombuffer(theirs, np.float32), atol=1e-4
            )


def started(model: Path, device: str, slots: int = SLOTS) -> StepDriver:
    fields = {"page_size": 4, "max_model_len": 40, "max_running": slots, "enforce_eager": True}
    loaded = load_model(serve_config(model, device=device, **fields), byte_vocabulary)
    return StepDriver(loaded.runner, loaded.ready)


@pytest.fixture
def twins(model: Path) -> Twins:
    return Twins(model)


def test_replayed_rows_of_every_kind_sample_like_launched_ones(twins: Twins) -> None:
    twins.load_grammar(4)
    twins.start(0)
    twins.start(1, SAMPLED)
    twins.start(2, FILTERED, grammar=4)
    twins.start(5, SAMPLED, grammar=4)
    twins.step([0, 1, 2, 5], PROMPT)
    twins.step([5, 2, 1])
    twins.start(3, PENALISED, prompt=packed(PROMPT))
    twins.start(4, BIASED, banned_tokens=packed([EOS, 3]))
    twins.step([3, 4], PROMPT)
    for _ in range(3):
        twins.step([4, 2, 3, 0, 5])
    twins.step([1, 3])
    assert twins.replayed == [4, 3, 2, 5, 5, 5, 2]


def test_grammars_may_move_the_tables_that_graphs_read(twins: Twins, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STATES", "ENTRIES", "ACTIONS", "RETURNS", "LISTS", "LIST_TOKENS", "MASKS", "GRAMMARS"):
        monkeypatch.setattr(automaton_pool, f"FIRST_{name}", 1)
    twins.start(0, SAMPLED)
    twins.step([0], PROMPT)
    twins.load_grammar(1)
    before = twins.driver.runner._states.table_addresses()
    twins.start(1, SAMPLED, grammar=1)
    twins.step([1], PROMPT)
    for number in range(2, 8):
        twins.load_grammar(number)
    assert (twins.driver.runner._states.table_addresses() != before).any()
    twins.start(2, FILTERED, grammar=2)
    twins.step([2], PROMPT)
    twins.step([0, 1, 2])
    assert twins.replayed == [1, 1, 1, 3]


def test_rows_with_logprobs_and_masks_of_the_host_are_replayed_beside_others(twins: Twins) -> None:
    twins.load_grammar(4)
    twins.start(0, PENALISED, prompt=packed(PROMPT))
    twins.start(1, SamplingParams(max_tokens=64, temperature=1.0, seed=7, logprobs=2))
    twins.start(2, SamplingParams(max_tokens=64, temperature=0.0, logprobs=0))
    twins.start(3, SAMPLED, grammar=4)
    twins.start(4, SamplingParams(max_tokens=64, temperature=0.0, logprobs=20))
    for slot in range(5):
        twins.step([slot], PROMPT)
    masked = twins.step([0], masks=lambda: StepMasks(1, packed([0]), bits([201, 202])))
    assert unpacked(masked.tokens)[0] in (201, 202)
    twins.step([0, 1, 2, 3])
    allowed = StepMasks(1, packed([3, 1]), bits([97, 98, 123]) + bits([77]))
    both = twins.step([1, 3, 4], masks=lambda: allowed)
    assert unpacked(both.tokens)[0] == 77
    twins.step([0, 3])
    assert [len(row.logprobs.top_ids) // 4 for row in both.logprobs] == [2, 20]
    assert twins.replayed == [1] * 5 + [1, 4, 3, 2]


def test_more_logprobs_than_a_graph_reports_run_without_it(twins: Twins) -> None:
    twins.start(0, SamplingParams(max_tokens=64, temperature=0.0, logprobs=21))
    twins.step([0], PROMPT)
    twins.step([0])
    assert twins.replayed == []


def test_a_step_with_more_biases_than_a_graph_holds_runs_without_it(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixed_sampling, "MAX_LISTED", 3)
    twins = Twins(model)
    twins.start(0, BIASED)
    twins.start(1, BIASED)
    twins.step([0], PROMPT)
    twins.step([1], PROMPT)
    twins.step([0, 1])
    assert twins.replayed == [1, 1]


def test_a_row_for_which_no_token_is_allowed_ends_alone(twins: Twins) -> None:
    none = SamplingParams(
        max_tokens=64, temperature=0.0, logit_bias=dict.fromkeys(range(VOCAB_SIZE), -np.inf)
    )
    twins.start(0, none)
    twins.start(1)
    result = twins.step([0, 1], PROMPT)
    assert [(error.slot, error.message) for error in result.errors] == [(0, NOTHING_ALLOWED)]
    assert twins.replayed == [2]
