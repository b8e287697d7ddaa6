"""The steps of a server before its first request."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from arbora.kernels.attention.cuda_tiles import Tiles
from arbora.kernels.sampling.warm_up import warm_up_sampling
from arbora.runtime.model.decoder_config import load_decoder_config
from arbora.runtime.model.kv_pool import PoolSize
from arbora.runtime.model.warm_up import CUDA_CHUNKS, CUDA_GROUP, cuda_plans
from checkpoints import VOCAB_SIZE, random_model, save_model
from step_driver import StepDriver, serve_config

PROMPT = [5, 17, 3, 250, 44, 80, 12]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = random_model("mistral", num_hidden_layers=1, sliding_window=12)
    return save_model(model, tmp_path_factory.mktemp("model"))


def tokens(driver: StepDriver) -> list[int]:
    driver.start(0)
    return [driver.prefill(0, PROMPT), *(driver.decode([0])[0] for _ in range(3))]


@pytest.mark.parametrize("limits", [{}, {"max_model_len": 11}, {"max_running": 1}, {"kv_memory": 1 << 14}])
def test_the_steps_that_warm_a_gpu_up_fit_any_server_and_leave_nothing(
    model: Path, limits: dict[str, int]
) -> None:
    config = serve_config(model, **{"max_running": 32, **limits})
    driver = StepDriver.load(model, **{"max_running": 32, **limits})
    expected = tokens(driver)
    pool = PoolSize(tuple(each.num_pages for each in driver.ready.groups), driver.ready.max_model_len)
    for plan in cuda_plans(load_decoder_config(model).cache_spec.windows, pool, config):
        result = driver.runner.run(plan, lambda: None)
        assert len(result.tokens) == 4 * len(plan.rows) and not result.errors
    assert tokens(driver) == expected


def test_sampling_is_warmed_up_on_any_device() -> None:
    warm_up_sampling(VOCAB_SIZE, torch.device("cpu"))


@pytest.mark.parametrize("repeat", range(1, 33))
@pytest.mark.parametrize(("head_dim", "element_size"), [(128, 2), (256, 2), (64, 4)])
def test_warming_up_compiles_attention_for_every_size_of_its_blocks(
    repeat: int, head_dim: int, element_size: int
) -> None:
    def tiles(queries: int) -> Tiles:
        return Tiles.choose(queries, repeat, head_dim, element_size)

    assert {tiles(n * repeat) for n in CUDA_CHUNKS} == {tiles(n * repeat) for n in range(2, 300)}
    groups = {tiles(max(repeat, min(64, n * repeat))) for n in range(1, 300)}
    assert {tiles(repeat), tiles(max(repeat, min(64, CUDA_GROUP * repeat)))} == groups
