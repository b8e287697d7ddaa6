"""The table of rotary embeddings, whose rows are computed when requests come near them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from arbora.runtime.model import rope
from arbora.runtime.model.decoder import Decoder
from arbora.runtime.model.executor import EagerExecutor
from arbora.runtime.model.rope import RotaryTable
from arbora.runtime.model.rope_config import RopeConfig
from checkpoints import random_model, save_model
from step_driver import StepDriver

PLAIN = RopeConfig(dim=16, original_positions=64)


def whole_table(config: RopeConfig, positions: int) -> torch.Tensor:
    table = RotaryTable(config, positions)
    table.cover(positions)
    return table.values


def not_a_number(driver: StepDriver) -> torch.Tensor:
    """The driver's table, of which no row is computed: all its values are NaN."""
    model = driver.runner._model
    assert isinstance(model, Decoder)
    (table,) = model._rotary.values()
    table._computed = 0
    return table.values.fill_(math.nan)


def test_dynamic_positions_are_plain_up_to_the_trained_context() -> None:
    dynamic = RopeConfig(kind="dynamic", dim=16, original_positions=64, factor=4.0)
    assert torch.equal(whole_table(dynamic, 64), whole_table(PLAIN, 64))
    assert not torch.allclose(whole_table(dynamic, 65), whole_table(PLAIN, 65))


def test_only_the_rotated_dimensions_are_in_the_table() -> None:
    table = whole_table(RopeConfig(dim=8, original_positions=64), 10)
    assert table.shape == (10, 8) and table.dtype == torch.float32
    assert table[0].tolist() == [1.0] * 4 + [0.0] * 4


def test_rows_are_computed_in_blocks_and_have_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = whole_table(PLAIN, 50)
    monkeypatch.setattr(rope, "BLOCK", 8)
    table = RotaryTable(PLAIN, 50)
    table.values.fill_(math.nan)
    for positions, computed in ((0, 0), (1, 8), (8, 8), (17, 24), (3, 24), (49, 50), (80, 50)):
        table.cover(positions)
        assert torch.equal(table.values[:computed], expected[:computed])
        assert table.values[computed:].isnan().all()


@pytest.mark.parametrize("eager", [True, False], ids=["kernel by kernel", "programs"])
def test_steps_compute_the_rows_of_their_positions_first(
    eager: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts, decoding beyond a block, and a slot that begins with pages of another one."""
    model = save_model(random_model("qwen3"), tmp_path / "model")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tokens = []
    for block in (4096, 4):
        monkeypatch.setattr(rope, "BLOCK", block)
        driver = StepDriver.load(model, page_size=2, max_model_len=64, enforce_eager=eager, quantize="int8")
        assert isinstance(driver.runner._executor, EagerExecutor) == eager
        values = not_a_number(driver)
        driver.start(0)
        sampled = [driver.prefill(0, list(range(11)), chunk=5)]
        sampled += [driver.decode([0])[0] for _ in range(6)]
        driver.start(1)
        driver.share(1, source=0, tokens=16)
        sampled.append(driver.prefill(1, list(range(20, 29))))
        tokens.append(sampled)
        assert values[:25].isfinite().all() and values[32:].isnan().all() == (block == 4)
    assert tokens[0] == tokens[1]
