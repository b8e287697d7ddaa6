"""Adapters against transformers with merged weights, in float32."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from arbora.kernels.adapters import group_rows, select_rows
from arbora.runtime.messages import DropAdapter, ReadAdapter
from checkpoints import random_model, save_model
from lora import ALL, merge, save_adapter
from safetensors.torch import load_file
from step_driver import StepDriver, unpacked
from transformers import PreTrainedModel
from transformers_oracle import EVERY_LOGPROB, assert_close, expected_greedy, expected_logprobs, random_tokens

MANY = 100
KINDS = [("q_proj", "v_proj"), ("gate_proj", "down_proj"), ("o_proj", "k_proj", "up_proj")]


@pytest.fixture(scope="module")
def base() -> PreTrainedModel:
    return random_model("qwen3", num_hidden_layers=2)


@pytest.fixture(scope="module")
def checkpoint(base: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(base, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def adapters(base: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    directory = tmp_path_factory.mktemp("adapters")
    return [
        save_adapter(
            directory / str(seed), base, seed, rank=1 + seed % 9, targets=KINDS[seed % 3] if seed % 4 else ALL
        )
        for seed in range(MANY)
    ]


def named(adapters: list[Path]) -> tuple[tuple[str, Path], ...]:
    return tuple((path.name, path) for path in adapters)


@pytest.mark.parametrize("eager", [False, True])
def test_a_hundred_adapters_equal_their_merged_weights_mixed_with_rows_of_the_base(
    base: PreTrainedModel, checkpoint: Path, adapters: list[Path], eager: bool
) -> None:
    driver = StepDriver.load(checkpoint, loras=named(adapters), enforce_eager=eager, max_running=128)
    models = [base, *(merge(base, path) for path in adapters)]
    for first in range(0, len(models), 8):
        slots = range(first, min(first + 8, len(models)))
        prompts = [random_tokens(9 + slot % 30, seed=slot) for slot in slots]
        for slot in slots:
            driver.start(slot, adapter=slot - 1 if slot else None)
        rows = [driver.row(slot, prompt) for slot, prompt in zip(slots, prompts, strict=True)]
        outputs = [[token] for token in unpacked(driver.run(rows).tokens)]
        for _ in range(4):
            for output, token in zip(outputs, driver.decode(slots), strict=True):
                output.append(token)
        for slot, prompt, output in zip(slots, prompts, outputs, strict=True):
            assert expected_greedy(models[slot], prompt, output) == output


@pytest.mark.parametrize("impl", ["native", "transformers"])
def test_every_logit_of_a_prompt_in_chunks_equals_the_merged_weights(
    base: PreTrainedModel, checkpoint: Path, adapters: list[Path], impl: str
) -> None:
    driver = StepDriver.load(checkpoint, loras=named(adapters[:4]), model_impl=impl)
    prompt = random_tokens(40)
    driver.start(0, EVERY_LOGPROB, adapter=0)
    got = driver.prompt_logprobs(0, prompt, chunk=13)
    assert_close(got, expected_logprobs(merge(base, adapters[0]), prompt)[:-1])
    assert (got - expected_logprobs(base, prompt)[:-1]).abs().max() > 0.1


def test_an_adapter_can_be_loaded_and_dropped_between_steps(
    base: PreTrainedModel, checkpoint: Path, adapters: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    driver = StepDriver.load(checkpoint, max_loras=2)
    prompt = random_tokens(20)
    for path in adapters[:3]:
        read = driver.runner.read_adapter(ReadAdapter(1, str(path), "more"))
        assert not read.error and len(read.digest) == 64
        driver.start(0, EVERY_LOGPROB, adapter=1)
        got = driver.prompt_logprobs(0, prompt, chunk=64)
        assert_close(got, expected_logprobs(merge(base, path), prompt)[:-1])
        driver.runner.drop_adapter(DropAdapter(1))
    lines = [each for each in caplog.messages if each.startswith("adapter ")]
    assert len(lines) == 3
    assert lines[1].startswith(f"adapter more: rank 2, for down_proj, gate_proj; read from {adapters[1]} in ")
    driver.start(0, EVERY_LOGPROB)
    assert_close(driver.prompt_logprobs(0, prompt, chunk=64), expected_logprobs(base, prompt)[:-1])


@pytest.mark.parametrize(
    ("saving", "scale"),
    [({"lora_alpha": 3}, 0.75), ({"lora_alpha": 3, "use_rslora": True}, 1.5), ({"rank": 256}, 2.0)],
)
def test_scales_and_large_ranks_equal_their_merged_weights(
    base: PreTrainedModel, checkpoint: Path, tmp_path: Path, saving: dict[str, Any], scale: float
) -> None:
    path = save_adapter(tmp_path, base, **saving)
    driver = StepDriver.load(checkpoint, loras=named([path]))
    prompt = random_tokens(20)
    driver.start(0, EVERY_LOGPROB, adapter=0)
    merged = merge(base, path, dict.fromkeys(ALL, scale))
    assert_close(driver.prompt_logprobs(0, prompt, chunk=64), expected_logprobs(merged, prompt)[:-1])


def test_parts_of_a_product_may_have_different_ranks_and_scales(
    base: PreTrainedModel, checkpoint: Path, tmp_path: Path
) -> None:
    pattern = {"v_proj": 16, "up_proj": 1}
    path = save_adapter(tmp_path, base, targets=("q_proj", "v_proj", "up_proj"), ranks=pattern)
    driver = StepDriver.load(checkpoint, loras=named([path]))
    prompt = random_tokens(20)
    driver.start(0, EVERY_LOGPROB, adapter=0)
    merged = merge(base, path, {"q_proj": 2.0, "v_proj": 0.5, "up_proj": 8.0})
    assert_close(driver.prompt_logprobs(0, prompt, chunk=64), expected_logprobs(merged, prompt)[:-1])


@pytest.mark.parametrize("quantize", ["int8", "int4", "fp8"])
def test_additions_to_quantized_products_are_exact(
    checkpoint: Path, adapters: list[Path], quantize: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    driver = StepDriver.load(checkpoint, loras=named(adapters[:1]), quantize=quantize)
    tensors = load_file(adapters[0] / "adapter_model.safetensors")
    product, parts = driver.runner._model.adaptable_products()[1]
    ((name, _),) = parts
    a, b = (tensors[f"base_model.model.{name}.lora_{matrix}.weight"] for matrix in "AB")
    x = torch.randn(5, product.in_features)
    select_rows(None)
    before = product(x)
    select_rows(torch.from_numpy(group_rows(np.zeros(5, np.int32), 5)))
    after = product(x)
    select_rows(None)
    torch.testing.assert_close(after - before, 2 * x @ a.T @ b.T, atol=1e-4, rtol=1e-4)


def test_memory_is_planned_for_all_adapters(checkpoint: Path) -> None:
    bank = StepDriver.load(checkpoint, max_loras=3, max_lora_rank=8).runner._adapters
    sizes = [(64, 128), (64, 64), (64, 64), (128, 64), (64, 96), (64, 96), (96, 64)]
    assert bank is not None and bank.bytes() == 3 * 8 * 4 * 2 * sum(map(sum, sizes))


def test_a_server_without_adapters_has_none_in_its_products(checkpoint: Path) -> None:
    model = StepDriver.load(checkpoint).runner._model
    assert all(product.adapters is None for product in model.products())
