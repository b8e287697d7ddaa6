"""Adapters against transformers with merged weights, in float32."""

from __future__ import annotations

from pathlib import Path

import pytest
from arbora.runtime.messages import DropAdapter, ReadAdapter
from checkpoints import random_model, save_model
from lora import ALL, merge, save_adapter
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


def test_every_logit_of_a_prompt_in_chunks_equals_the_merged_weights(
    base: PreTrainedModel, checkpoint: Path, adapters: list[Path]
) -> None:
    driver = StepDriver.load(checkpoint, loras=named(adapters[:4]))
    prompt = random_tokens(40)
    driver.start(0, EVERY_LOGPROB, adapter=0)
    got = driver.prompt_logprobs(0, prompt, chunk=13)
    assert_close(got, expected_logprobs(merge(base, adapters[0]), prompt)[:-1])
    assert (got - expected_logprobs(base, prompt)[:-1]).abs().max() > 0.1


def test_an_adapter_can_be_loaded_and_dropped_between_steps(
    base: PreTrainedModel, checkpoint: Path, adapters: list[Path]
) -> None:
    driver = StepDriver.load(checkpoint, max_loras=2)
    prompt = random_tokens(20)
    for path in adapters[:3]:
        read = driver.runner.read_adapter(ReadAdapter(1, str(path)))
        assert not read.error and len(read.digest) == 64
        driver.start(0, EVERY_LOGPROB, adapter=1)
        got = driver.prompt_logprobs(0, prompt, chunk=64)
        assert_close(got, expected_logprobs(merge(base, path), prompt)[:-1])
        driver.runner.drop_adapter(DropAdapter(1))
    driver.start(0, EVERY_LOGPROB)
    assert_close(driver.prompt_logprobs(0, prompt, chunk=64), expected_logprobs(base, prompt)[:-1])
