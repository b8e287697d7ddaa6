"""The whole model on the CUDA path against the CPU path: on a GPU, or without one in Triton's interpreter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from arbora.runtime.messages import RowGroup, StepMasks, StepResult
from arbora.runtime.model.loading import load_model
from arbora.runtime.sampling_params import SamplingParams
from byte_grammars import EOS, bits, byte_vocabulary, nested
from checkpoints import VOCAB_SIZE, random_model, save_model
from stack_automata import load_message
from step_driver import GREEDY, StepDriver, full_logprobs, packed, serve_config, unpacked
from triton_device import DEVICE, triton_kernels

TOLERANCE = 1e-4
PROMPT = np.random.default_rng(0).integers(0, 256, 40).tolist()
EVERY_LOGPROB = SamplingParams(
    max_tokens=64, temperature=0.0, logprobs=VOCAB_SIZE, prompt_logprobs=VOCAB_SIZE
)
NESTED = SamplingParams(max_tokens=64, temperature=1.0, seed=5, top_k=20, top_p=0.9, min_p=0.02)
EDITED = SamplingParams(
    max_tokens=64,
    temperature=1.3,
    seed=9,
    repetition_penalty=1.3,
    frequency_penalty=0.8,
    presence_penalty=0.3,
    logit_bias={3: 4.0, 200: -2.0},
    min_tokens=3,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Head norms, grouped queries, and a window in every other layer."""
    layers = ["sliding_attention", "full_attention"]
    model = random_model(
        "qwen3", num_hidden_layers=2, use_sliding_window=True, sliding_window=11, layer_types=layers
    )
    return save_model(model, tmp_path_factory.mktemp("model"))


def run_every_kind_of_step(model: Path, device: str) -> list[StepResult]:
    """Chunks, shared and copied pages, groups, an automaton, host masks, edited logits, log-probabilities."""
    loaded = load_model(serve_config(model, device=device), byte_vocabulary)
    driver = StepDriver(loaded.runner, loaded.ready)
    driver.runner.load_grammar(load_message(4, nested()))
    results = []
    driver.start(0, EVERY_LOGPROB)
    first = driver.row(0, PROMPT[:23], sample=False, targets=packed(PROMPT[1:24]))
    results.append(driver.run([first]))
    results.append(driver.run([driver.row(0, PROMPT[23:])]))
    driver.start(1)
    driver.share(1, 0, 37)
    driver.start(2, NESTED, grammar=4)
    driver.start(3, EDITED, prompt=packed(PROMPT[:9]), banned_tokens=packed([EOS, 3]))
    chunks = [driver.row(1, PROMPT[37:]), driver.row(2, PROMPT[:5]), driver.row(3, PROMPT[:9])]
    results.append(driver.run([driver.row(0), *chunks]))
    for _ in range(3):
        rows = [driver.row(slot) for slot in range(4)]
        results.append(driver.run(rows, [RowGroup(first_row=0, rows=2, shared_tokens=32)]))
    driver.start(4, GREEDY)
    masked = [driver.row(2), driver.row(4, PROMPT[:3], host_mask=True)]
    results.append(driver.run(masked, masks=lambda: StepMasks(1, packed([4]), bits([201, 202]))))
    return results


def reported(result: StepResult) -> list[torch.Tensor]:
    """Log-probabilities of every token, one table for each report of a result."""
    reports = [*result.logprobs, *result.prompt_logprobs]
    return [full_logprobs(report.logprobs, VOCAB_SIZE) for report in reports]


def test_the_cuda_path_gives_the_tokens_states_and_logprobs_of_the_cpu(model: Path) -> None:
    expected = run_every_kind_of_step(model, "cpu")
    with triton_kernels():
        results = run_every_kind_of_step(model, DEVICE.type)
    for got, want in zip(results, expected, strict=True):
        assert (unpacked(got.slots), unpacked(got.tokens)) == (unpacked(want.slots), unpacked(want.tokens))
        assert unpacked(got.states) == unpacked(want.states)
        assert (got.errors, want.errors) == ([], [])
        for table, wanted in zip(reported(got), reported(want), strict=True):
            assert (table - wanted).abs().max() < TOLERANCE
