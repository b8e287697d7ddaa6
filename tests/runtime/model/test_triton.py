"""The whole model on the CUDA path against the CPU path: on a GPU, or without one in Triton's interpreter."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import torch
from arbora.runtime.messages import RowGroup, StepMasks, StepResult
from arbora.runtime.model.loading import load_model
from arbora.runtime.sampling_params import SamplingParams
from byte_grammars import EOS, bits, byte_vocabulary, nested
from checkpoints import VOCAB_SIZE
from stack_automata import load_message
from step_driver import BIASED, FILTERED, GREEDY, PENALISED, StepDriver, packed, serve_config, unpacked
from triton_device import DEVICE, cache_as_on_a_gpu, triton_kernels  # noqa: F401

TOLERANCE = 1e-4
PROMPT = np.random.default_rng(0).integers(0, 256, 14).tolist()
REPORTED = SamplingParams(max_tokens=64, temperature=0.0, logprobs=4, prompt_logprobs=VOCAB_SIZE)
EDITED = msgspec.structs.replace(PENALISED, logit_bias=BIASED.logit_bias, min_tokens=3)


def started(model: Path, device: str, eager: bool = False) -> StepDriver:
    config = serve_config(model, device=device, page_size=4, max_model_len=20, enforce_eager=eager)
    loaded = load_model(config, byte_vocabulary)
    return StepDriver(loaded.runner, loaded.ready)


def run_every_kind_of_step(driver: StepDriver) -> list[StepResult]:
    """Chunks, shared and copied pages, groups, an automaton, host masks, edited logits, log-probabilities."""
    driver.runner.load_grammar(load_message(4, nested()))
    results = []
    driver.start(0, REPORTED)
    first = driver.row(0, PROMPT[:9], samples=0, targets=packed(PROMPT[1:10]))
    results.append(driver.run([first]))
    results.append(driver.run([driver.row(0, PROMPT[9:])]))
    driver.start(1)
    driver.share(1, 0, 11)
    driver.start(2, FILTERED, grammar=4)
    driver.start(3, EDITED, prompt=packed(PROMPT[:3]), banned_tokens=packed([EOS, 3]))
    chunks = [driver.row(1, PROMPT[11:]), driver.row(2, PROMPT[:2]), driver.row(3, PROMPT[:3])]
    results.append(driver.run([driver.row(0), *chunks]))
    for _ in range(2):
        rows = [driver.row(slot) for slot in range(4)]
        results.append(driver.run(rows, [RowGroup(first_row=0, rows=2, shared_tokens=8)]))
    driver.start(4, GREEDY)
    masked = [driver.row(2), driver.row(4, PROMPT[:2], host_mask=True)]
    results.append(driver.run(masked, masks=lambda: StepMasks(1, packed([4]), bits([201, 202]))))
    driver.start(5, REPORTED)
    driver.share(5, 0, 8)
    chunk_between = [driver.row(0), driver.row(5, PROMPT[8:12]), driver.row(1)]
    results.append(driver.run(chunk_between, [RowGroup(first_row=0, rows=3, shared_tokens=8)]))
    return results


def logprobs(result: StepResult) -> torch.Tensor:
    """All that a result reports, float32 [n]."""
    reports = [row.logprobs for row in result.logprobs] + [row.logprobs for row in result.prompt_logprobs]
    values = [np.frombuffer(part, np.float32) for r in reports for part in (r.chosen, r.top_values)]
    return torch.from_numpy(np.concatenate([np.zeros(0, np.float32), *values]))


def test_the_cuda_path_gives_the_tokens_states_and_logprobs_of_the_cpu(model: Path) -> None:
    expected = run_every_kind_of_step(started(model, "cpu"))
    # For tensors in the interpreter, the model would be loaded with programs of the CPU's kernels.
    driver = started(model, DEVICE.type, eager=DEVICE.type == "cpu")
    with triton_kernels():
        results = run_every_kind_of_step(driver)
    assert [len(logprobs(result)) for result in expected] == [9 * (VOCAB_SIZE + 1), 5, 5, 5, 5, 0, 10]
    for got, want in zip(results, expected, strict=True):
        assert (unpacked(got.counts), unpacked(got.tokens)) == (unpacked(want.counts), unpacked(want.tokens))
        assert unpacked(got.states) == unpacked(want.states)
        assert (got.errors, want.errors) == ([], [])
        torch.testing.assert_close(logprobs(got), logprobs(want), atol=TOLERANCE, rtol=0)
