"""A deterministic model: the same logits, bit by bit, in any batch, in any chunks, cached or not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from arbora.kernels.linear import Linear
from arbora.kernels.linear.invariant import invariant_sizes
from arbora.runtime.messages import RowGroup
from arbora.runtime.model.decoder_config import load_decoder_config
from arbora.runtime.model.loading import load_model
from arbora.runtime.model.weight_formats import Checkpoint, ProjectionLoader, load_weight_formats
from arbora.runtime.model.weights import load_weights
from arbora.runtime.sampling_params import SamplingParams
from checkpoints import random_model, save_model
from step_driver import StepDriver, no_vocabulary, serve_config, unpacked

PAGE = 4
TOKENS = 24
"""of each reply"""
EVERY = SamplingParams(max_tokens=TOKENS, temperature=0.0, logprobs=20)
HOT = SamplingParams(max_tokens=TOKENS, temperature=1.5, top_p=0.9, seed=7, logprobs=20)
DTYPES = ["bfloat16", "float32", "bfloat16 int8", "float32 int8"]
"""of activations, and of the KV cache if it has another"""

Reply = list[tuple[int, bytes, bytes]]
"""Tokens with the ids and log-probabilities of the most likely ones."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Wide enough for products that oneDNN adds up in an order of their own for one row."""
    model = random_model("qwen3", num_hidden_layers=2, intermediate_size=2176, max_position_embeddings=1100)
    return save_model(model, tmp_path_factory.mktemp("model"))


def driver_of(model: Path, dtype: str, deterministic: bool = True) -> StepDriver:
    computed, _, stored = dtype.partition(" ")
    fields = {
        "dtype": computed,
        "kv_dtype": stored or "auto",
        "deterministic": deterministic,
        "page_size": PAGE,
    }
    return StepDriver.load(model, **fields, kv_memory=64 << 20)


def prompt(length: int, seed: int = 0) -> list[int]:
    tokens: list[int] = np.random.default_rng(seed).integers(3, 250, length).tolist()
    return tokens


def step(driver: StepDriver, chunks: dict[int, list[int]], groups: tuple[RowGroup, ...] = ()) -> Reply:
    """The token that slot 0 samples in a step with these chunks; a row in decode has no chunk."""
    rows = [driver.row(slot, tokens) for slot, tokens in chunks.items()]
    result = driver.run(rows, groups)
    at = list(chunks).index(0)
    report = next(part.logprobs for part in result.logprobs if part.slot == 0)
    return [(unpacked(result.tokens)[at], report.top_ids, report.top_values)]


def alone(driver: StepDriver, tokens: list[int], params: SamplingParams) -> Reply:
    driver.start(0, params)
    reply = step(driver, {0: tokens})
    while len(reply) < TOKENS:
        reply += step(driver, {0: []})
    return reply


def in_chunks(driver: StepDriver, tokens: list[int], params: SamplingParams) -> Reply:
    """Of changing sizes, one token at last."""
    random = np.random.default_rng(1)
    driver.start(0, params)
    at = 0
    while at < len(tokens) - 1:
        size = min(int(random.integers(1, 90)), len(tokens) - 1 - at)
        driver.run([driver.row(0, tokens[at : at + size], samples=0)])
        at += size
    reply = step(driver, {0: tokens[at:]})
    while len(reply) < TOKENS:
        reply += step(driver, {0: []})
    return reply


def cached(driver: StepDriver, tokens: list[int], params: SamplingParams) -> Reply:
    """Another request computed most of the prompt, up to the middle of a page."""
    driver.start(7, EVERY)
    driver.prefill(7, tokens[:-2])
    driver.start(0, params)
    driver.share(0, 7, len(tokens) - 3)
    reply = step(driver, {0: tokens[-3:]})
    while len(reply) < TOKENS:
        reply += step(driver, {0: []})
    return reply


def in_a_busy_batch(driver: StepDriver, tokens: list[int], params: SamplingParams) -> Reply:
    """Beside requests that share its prefix, and are read in a group with it, and the chunks of another."""
    shared = (len(tokens) - 1) // PAGE * PAGE
    driver.start(7, EVERY)
    driver.prefill(7, tokens)
    for slot in (1, 2, 3):
        driver.start(slot, EVERY)
        driver.share(slot, 7, shared)
        driver.run([driver.row(slot, [9, 8, slot])])
    driver.start(0, params)
    driver.share(0, 7, shared)
    driver.start(4, EVERY)
    others: dict[int, list[int]] = {1: [], 2: [], 3: []}
    reply = step(driver, {**others, 0: tokens[shared:], 4: prompt(50, 4)})
    group = (RowGroup(0, 4, shared),) if shared else ()
    while len(reply) < TOKENS:
        chunk = prompt(len(reply) % 7 + 2, len(reply))
        reply += step(driver, {**others, 0: [], 4: chunk}, group)
    return reply


def retracted(driver: StepDriver, tokens: list[int], params: SamplingParams) -> Reply:
    """In the middle of its reply it begins again, with what it has said as part of its prompt."""
    driver.start(0, params)
    reply = step(driver, {0: tokens})
    while len(reply) < TOKENS // 2:
        reply += step(driver, {0: []})
    said = [token for token, _, _ in reply]
    driver.start(0, params, position=len(said))
    reply += step(driver, {0: tokens + said})
    while len(reply) < TOKENS:
        reply += step(driver, {0: []})
    return reply


WAYS = (in_chunks, cached, in_a_busy_batch, retracted)


@pytest.mark.parametrize("params", [EVERY, HOT], ids=["greedy", "sampled"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("length", [5, 70, 1000])
def test_every_way_gives_the_same_tokens_and_bits(
    model: Path, dtype: str, params: SamplingParams, length: int
) -> None:
    tokens = prompt(length)
    expected = alone(driver_of(model, dtype), tokens, params)
    for way in WAYS:
        assert way(driver_of(model, dtype), tokens, params) == expected, way.__name__


def test_without_it_bits_do_depend_on_the_way(model: Path) -> None:
    """Or the test above would show nothing. On every processor, rows that are read in a group add their keys
    in another order. float32 shows it; bfloat16 may round the difference away."""
    tokens = prompt(1000)
    expected = alone(driver_of(model, "float32", deterministic=False), tokens, EVERY)
    assert in_a_busy_batch(driver_of(model, "float32", deterministic=False), tokens, EVERY) != expected


@pytest.mark.parametrize("dtype", DTYPES)
def test_log_probabilities_of_prompts_are_the_same_in_any_chunks(model: Path, dtype: str) -> None:
    tokens = prompt(60)
    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=20)
    reports = []
    for chunk in (60, 7, 1):
        driver = driver_of(model, dtype)
        driver.start(0, params)
        chosen = b""
        for at in range(0, len(tokens) - 1, chunk):
            part = tokens[at : at + chunk]
            targets = np.array(tokens[at + 1 : at + chunk + 1], np.int32).tobytes()
            result = driver.run([driver.row(0, part, targets=targets, samples=0)])
            chosen += b"".join(report.logprobs.chosen for report in result.prompt_logprobs)
        reports.append(chosen)
    assert len(reports[0]) == 4 * 59
    assert reports[0] == reports[1] == reports[2]


def test_threads_change_no_bit_of_attention_and_norms(model: Path) -> None:
    tokens = prompt(700)
    before = torch.get_num_threads()
    replies = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            replies.append(alone(driver_of(model, "bfloat16"), tokens, EVERY))
    finally:
        torch.set_num_threads(before)
    assert replies[0] == replies[1]


def test_pages_that_were_computed_otherwise_are_not_restored(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def page_model(**fields: bool) -> bytes:
        config = serve_config(model, dtype="bfloat16", disk_cache=tmp_path / "pages", **fields)
        loaded = load_model(config, no_vocabulary)
        return loaded.ready.page_model

    plain, canonical = page_model(), page_model(deterministic=True)
    assert plain != canonical and canonical == page_model(deterministic=True)
    monkeypatch.setattr("arbora.runtime.model.loading.arithmetic", lambda: "another processor")
    assert page_model(deterministic=True) not in (plain, canonical)


@pytest.mark.parametrize("tied", [False, True])
def test_no_trial_weight_is_made_while_the_weight_itself_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tied: bool
) -> None:
    directory = save_model(random_model("qwen2", num_hidden_layers=1, tie_word_embeddings=tied), tmp_path)
    trials_while_packing: list[int] = []
    pack = Linear.pack

    def noted(weight: torch.Tensor, bias: torch.Tensor | None, batch_invariant: bool) -> Linear:
        before = invariant_sizes.cache_info().misses
        packed = pack(weight, bias, batch_invariant)
        trials_while_packing.append(invariant_sizes.cache_info().misses - before)
        return packed

    monkeypatch.setattr(Linear, "pack", staticmethod(noted))
    invariant_sizes.cache_clear()
    config = load_decoder_config(directory)
    checkpoint = Checkpoint(directory)
    choose = load_weight_formats(directory, checkpoint.names).choose
    load_weights(ProjectionLoader(checkpoint, choose, torch.float32, torch.device("cpu"), True), config)
    assert trials_while_packing == [0] * 5
    assert invariant_sizes.cache_info().misses > 0
