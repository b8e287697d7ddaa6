"""Quantized checkpoints against transformers with the weights that they represent, in float32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from arbora.runtime.model.decoder_config import load_decoder_config
from arbora.runtime.model.weight_formats import Checkpoint, ProjectionLoader, load_weight_formats
from arbora.runtime.model.weights import layer_projections
from quantized_checkpoints import CASES, write_quantized
from step_driver import StepDriver
from transformers import PreTrainedModel
from transformers_oracle import (
    EVERY_LOGPROB,
    assert_close,
    expected_greedy,
    expected_logprobs,
    random_tokens,
)

Pair = tuple[PreTrainedModel, Path]
"""a model of transformers and the checkpoint whose quantized weights it has"""


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    directory = tmp_path_factory.mktemp("model")
    return write_quantized(CASES[request.param], directory), directory


def loader(directory: Path, dtype: torch.dtype) -> ProjectionLoader:
    checkpoint = Checkpoint(directory)
    choose = load_weight_formats(directory, checkpoint.names).choose
    return ProjectionLoader(checkpoint, choose, dtype, torch.device("cpu"), batch_invariant=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_are_expanded_exactly(pair: Pair, dtype: torch.dtype) -> None:
    model, directory = pair
    reader, config = loader(directory, dtype), load_decoder_config(directory)
    for layer in range(config.layers):
        for projection in layer_projections(config, layer).all():
            expected = model.get_submodule(projection.name).get_parameter("weight")
            assert torch.equal(reader.weight(projection), expected.to(dtype)), projection.name


@pytest.mark.usefixtures("expanded")
def test_a_prompt_has_the_same_logprobs(pair: Pair) -> None:
    model, directory = pair
    tokens = random_tokens(60)
    driver = StepDriver.load(directory)
    driver.start(0, EVERY_LOGPROB)
    assert_close(driver.prompt_logprobs(0, tokens, 37), expected_logprobs(model, tokens)[:-1])


@pytest.mark.parametrize("name", [name for name in CASES if "fp8" in name])
def test_packed_fp8_has_the_same_logprobs(name: str, tmp_path: Path) -> None:
    model, tokens = write_quantized(CASES[name], tmp_path), random_tokens(60)
    driver = StepDriver.load(tmp_path)
    driver.start(0, EVERY_LOGPROB)
    assert_close(driver.prompt_logprobs(0, tokens, 37), expected_logprobs(model, tokens)[:-1])


@pytest.mark.usefixtures("expanded")
def test_greedy_tokens_are_those_of_transformers(pair: Pair) -> None:
    model, directory = pair
    prompt = random_tokens(20, 1)
    driver = StepDriver.load(directory)
    driver.start(0)
    got = [driver.prefill(0, prompt)]
    got += [driver.decode([0])[0] for _ in range(15)]
    assert len(got) == 16
    assert got == expected_greedy(model, prompt, got)
