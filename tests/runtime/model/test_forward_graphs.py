"""Steps replayed in buffers of fixed size against the same steps launched anew.

On a GPU they are captured; without one their launches are recorded, interpreted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import interpreted_triton  # noqa: F401
import numpy as np
import pytest
import torch
from arbora.kernels.attention import cuda as attention_cuda
from arbora.kernels.attention.fixed_steps import Scratch
from arbora.runtime.messages import RowGroup
from arbora.runtime.model import forward_graphs
from arbora.runtime.model.capture import Captures, choose_sizes
from arbora.runtime.model.executor import EagerExecutor
from arbora.runtime.model.forward_graphs import ForwardGraphs
from arbora.runtime.model.input_batch import StepInputs
from arbora.runtime.model.tiers import Restore
from arbora.runtime.sampling_params import SamplingParams
from checkpoints import WINDOWED, random_model, save_model
from lora import save_adapter
from recorded_launches import capture
from step_driver import StepDriver, device_of, packed
from triton_device import DEVICE, cache_as_on_a_gpu, triton_kernels  # noqa: F401

SLOTS, PAGE, CONTEXT = 5, 4, 160
SIZES = [1, 5, 12]
PROMPTS = [np.random.default_rng(length).integers(0, 256, length).tolist() for length in (3, 134, 5, 99, 2)]
SHARED = 8
Step = tuple[Sequence[int], Sequence[RowGroup]]
GROUPS = [RowGroup(first_row=1, rows=2, shared_tokens=SHARED)]
LEVELS = [RowGroup(first_row=1, rows=2, shared_tokens=PAGE), *GROUPS]


class Compared(EagerExecutor):
    """Runs each forward pass both ways, and notes the tokens of those that were replayed."""

    def __init__(self, driver: StepDriver) -> None:
        super().__init__(device_of(driver))
        self.replayed: list[int] = []
        self._model, self._kvs = self._device.model, self._device.kvs
        tables, states = driver.runner._tables, driver.runner._states
        hidden = torch.full((SLOTS, self._model.config.hidden_size), torch.nan, device=DEVICE)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(forward_graphs, "MAX_TOKENS", SIZES[-1])
            patch.setattr(forward_graphs, "choose_sizes", lambda most: SIZES)
            has_adapters = driver.runner._adapters is not None
            self._graphs = ForwardGraphs(self._model.config.cache_spec, hidden, tables, states, has_adapters)
        self._graphs.capture(self._model, self._kvs, Captures(capture()))
        driver.runner._executor = self

    def run(self, inputs: StepInputs, restore: Restore | None) -> torch.Tensor:
        before = [kv.clone() for kv in self._kvs]
        hidden = self._graphs.forward(inputs)
        if hidden is None:
            return super().run(inputs, restore)
        self.replayed.append(inputs.size)
        hidden, written = hidden.clone(), [kv.clone() for kv in self._kvs]
        for kv, old in zip(self._kvs, before, strict=True):
            kv.copy_(old)
        expected = self._model.forward(inputs.on_device, self._kvs)
        torch.testing.assert_close(hidden, expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(written, list(self._kvs), atol=1e-4, rtol=1e-4)
        return hidden


def started(model: Path, **more: Any) -> StepDriver:
    fields = {
        **more,
        "page_size": PAGE,
        "max_model_len": CONTEXT,
        "max_running": SLOTS,
        "enforce_eager": True,
    }
    return StepDriver.load(model, device=DEVICE.type, **fields)


def replayed(model: Path, steps: Sequence[Step]) -> list[int]:
    """Rows of the steps that were replayed, all of one token a row behind prompts; 2 begins as 1 does."""
    driver = started(model)
    for slot, prompt in enumerate(PROMPTS):
        driver.start(slot)
        if slot == 2:
            driver.share(slot, 1, SHARED)
        driver.run([driver.row(slot, prompt)])
    with triton_kernels():
        compared = Compared(driver)
        for slots, groups in steps:
            driver.run([driver.row(slot) for slot in slots], groups)
    return compared.replayed


def test_replayed_steps_give_the_same_results_as_launched_ones(model: Path) -> None:
    steps: list[Step] = [([0, 1, 2, 3, 4], []), ([3], []), ([0, 2, 3, 4], [])]
    assert replayed(model, steps) == [5, 1, 4]


@pytest.mark.parametrize("least", [1, attention_cuda.MIN_SPLIT])
def test_rows_that_share_pages_may_be_split(model: Path, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_cuda, "MIN_SPLIT", least)
    assert replayed(model, [([0, 1, 2, 3], LEVELS), ([0, 1, 2], GROUPS), ([0, 1, 2], [])]) == [4, 3, 3]


def test_more_partial_results_than_a_graph_holds_run_without_it(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def small(*arguments: Any) -> Scratch:
        scratch = allocate(*arguments)
        return replace(scratch, partial=scratch.partial[:3], partial_sum=scratch.partial_sum[:3])

    allocate = Scratch.allocate
    monkeypatch.setattr(Scratch, "allocate", small)
    assert replayed(model, [([0, 1, 2], GROUPS), ([0, 1, 2], [])]) == [3]


def test_rows_that_share_pages_within_a_window_are_replayed(tmp_path: Path) -> None:
    wide = save_model(random_model("qwen3", **{**WINDOWED, "sliding_window": CONTEXT}), tmp_path)
    assert replayed(wide, [([0, 1, 2], GROUPS)]) == [3]


def test_chunks_and_rows_in_decode_are_replayed_in_any_mixture(model: Path) -> None:
    driver = started(model)
    for slot in (0, 1, 2):
        driver.start(slot)
        driver.run([driver.row(slot, PROMPTS[slot])])
    driver.start(3)
    with triton_kernels():
        compared = Compared(driver)
        driver.run([driver.row(0), driver.row(1, [5], samples=0)])
        driver.run([driver.row(2), driver.row(1, [7, 8]), driver.row(0, [3, 4, 5])])
        driver.run([driver.row(3, PROMPTS[1][:12], samples=0)])
        driver.run([driver.row(1), driver.row(3, PROMPTS[1][12:20], samples=0)])
        driver.run([driver.row(slot) for slot in (2, 1, 0)])
    assert compared.replayed == [2, 6, 12, 9, 3]


def test_a_group_and_a_chunk_are_replayed_together(model: Path) -> None:
    driver = started(model)
    for slot, prompt in enumerate(PROMPTS[:4]):
        driver.start(slot)
        if slot == 2:
            driver.share(slot, 1, SHARED)
        driver.run([driver.row(slot, prompt)])
    with triton_kernels():
        compared = Compared(driver)
        rows = [driver.row(slot) for slot in (0, 1, 2)]
        driver.run([*rows, driver.row(3, [1, 2, 3, 4])], GROUPS)
    assert compared.replayed == [7]


def test_rows_of_adapters_are_replayed_in_graphs_of_their_own(tmp_path: Path) -> None:
    base = random_model("qwen3", num_hidden_layers=1)
    model = save_model(base, tmp_path / "model")
    loras = [(name, save_adapter(tmp_path / name, base, seed)) for seed, name in enumerate("ab")]
    driver = started(model, loras=tuple(loras))
    for slot, adapter in enumerate([0, None, 1]):
        driver.start(slot, adapter=adapter)
        driver.run([driver.row(slot, PROMPTS[0])])
    with triton_kernels():
        compared = Compared(driver)
        driver.run([driver.row(slot) for slot in (0, 1, 2)])
        driver.run([driver.row(2, [3, 4]), driver.row(0, [5], samples=0)])
        driver.run([driver.row(1)])
    assert compared.replayed == [3, 3, 1]


def test_steps_with_more_tokens_or_outputs_than_a_graph_holds_run_without_it(model: Path) -> None:
    driver = started(model)
    driver.start(0, SamplingParams(max_tokens=64, temperature=0.0, prompt_logprobs=0))
    with triton_kernels():
        compared = Compared(driver)
        driver.run([driver.row(0, PROMPTS[1][:13], samples=0)])
        driver.run([driver.row(0, [1, 2, 3, 4, 5, 6], samples=0, targets=packed([2, 3, 4, 5, 6, 7]))])
        driver.run([driver.row(0, [1, 2, 3, 4], samples=0, targets=packed([2, 3, 4, 5]))])
    assert compared.replayed == [4]


def test_sizes_waste_less_than_half() -> None:
    assert choose_sizes(1) == [1]
    assert choose_sizes(5) == [1, 2, 3, 4, 5]
    assert choose_sizes(64) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]
    assert choose_sizes(512)[-8:] == [96, 128, 192, 256, 320, 384, 448, 512]
