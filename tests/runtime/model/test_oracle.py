"""The decoder against transformers in float32: every family and way of stretching positions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from arbora.runtime.messages import RowGroup
from checkpoints import VOCAB_SIZE, edit_config, random_model, save_model
from step_driver import StepDriver, full_logprobs
from transformers import PreTrainedModel
from transformers_oracle import (
    EVERY_LOGPROB,
    assert_close,
    expected_greedy,
    expected_logprobs,
    random_tokens,
)

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama with every bias": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama tied, without grouped queries": ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "llama linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.5, "rope_theta": 1e4}}),
    "llama dynamic": (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
    ),
    "llama 3": ("llama", {"rope_parameters": {**LLAMA3, "rope_theta": 5e5}}),
    "mistral": ("mistral", {}),
    "mistral with a window": ("mistral", {"sliding_window": 12}),
    "gemma2 with windows and soft caps": ("gemma2", {}),
    "gemma3 with windows and two kinds of rotation": ("gemma3", {}),
    "qwen2": ("qwen2", {}),
    "qwen2 with windows in the upper layers": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "qwen2 yarn": ("qwen2", {"rope_parameters": {**YARN, "rope_theta": 1e6}}),
    "qwen3": ("qwen3", {}),
    "qwen3 tied with biases": ("qwen3", {"attention_bias": True, "tie_word_embeddings": True}),
    "qwen3 with layer types": (
        "qwen3",
        {
            "use_sliding_window": True,
            "sliding_window": 7,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "gpt-oss": ("gpt_oss", {}),
    "mixtral": ("mixtral", {}),
    "mixtral with a window": ("mixtral", {"sliding_window": 12}),
    "qwen3 moe": ("qwen3_moe", {}),
    "qwen3 moe with a dense layer, shares of all": (
        "qwen3_moe",
        {"mlp_only_layers": [1], "norm_topk_prob": False, "tie_word_embeddings": True},
    ),
    "qwen3 moe with experts in every other layer": ("qwen3_moe", {"decoder_sparse_step": 2}),
    "qwen3 yarn with its own amplitude": (
        "qwen3",
        {
            "rope_parameters": {
                **YARN,
                "rope_theta": 1e6,
                "beta_fast": 16.0,
                "beta_slow": 2.0,
                "attention_factor": 1.3,
                "truncate": False,
            }
        },
    ),
}
Pair = tuple[PreTrainedModel, Path]
"""a model of transformers and its checkpoint"""


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    family, fields = CASES[request.param]
    model = random_model(family, **fields)
    return model, save_model(model, tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("chunk", [150, 37])
def test_a_prompt_has_the_same_logprobs_whole_and_in_chunks(pair: Pair, chunk: int) -> None:
    model, directory = pair
    tokens = random_tokens(150)
    driver = StepDriver.load(directory)
    driver.start(0, EVERY_LOGPROB)
    assert_close(driver.prompt_logprobs(0, tokens, chunk), expected_logprobs(model, tokens)[:-1])


@pytest.mark.parametrize("chunk", [90, 37])
def test_a_prompt_s_end_behind_a_cached_prefix_has_the_same_logprobs(pair: Pair, chunk: int) -> None:
    model, directory = pair
    tokens = random_tokens(150)
    expected = expected_logprobs(model, tokens)[99:-1]
    driver = StepDriver.load(directory)
    driver.start(0, EVERY_LOGPROB)
    assert_close(driver.prompt_logprobs(0, tokens, chunk, first=100), expected)
    for slot, cached in enumerate((99, 64, 37), start=1):
        driver.start(slot, EVERY_LOGPROB)
        driver.share(slot, 0, cached)
        assert_close(driver.prompt_logprobs(slot, tokens, chunk, first=100, cached=cached), expected)


def test_decoding_has_the_same_logprobs(pair: Pair) -> None:
    model, directory = pair
    tokens = random_tokens(40)
    driver = StepDriver.load(directory)
    driver.start(0, EVERY_LOGPROB)
    sequence = [*tokens, driver.prefill(0, tokens, chunk=29)]
    reports = []
    for _ in range(12):
        result = driver.run([driver.row(0)])
        reports.append(full_logprobs(result.logprobs[0].logprobs, VOCAB_SIZE))
        sequence.append(int(reports[-1].argmax()))
    assert_close(torch.cat(reports), expected_logprobs(model, sequence)[len(tokens) : -1])


@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_greedy_tokens_are_the_same_in_a_batch_of_mixed_lengths(pair: Pair, page_size: int) -> None:
    model, directory = pair
    prompts = {0: random_tokens(3, 1), 3: random_tokens(41, 2), 5: random_tokens(90, 3)}
    driver = StepDriver.load(directory, page_size=page_size)
    outputs: dict[int, list[int]] = {slot: [] for slot in prompts}
    running: list[int] = []
    for slot, prompt in prompts.items():  # each joins with its prompt while the others decode
        driver.start(slot)
        rows = [*(driver.row(other) for other in running), driver.row(slot, prompt)]
        running.append(slot)
        collect(outputs, running, driver.run(rows).tokens)
    while min(map(len, outputs.values())) < 64:
        collect(outputs, running, driver.run([driver.row(slot) for slot in running]).tokens)
    for slot, prompt in prompts.items():
        output = outputs[slot][:64]
        assert output == expected_greedy(model, prompt, output)


def test_greedy_tokens_are_the_same_on_a_shared_prefix(pair: Pair) -> None:
    """Whole pages are shared, the partial one is copied, and the group reads its pages once."""
    model, directory = pair
    prefix = random_tokens(37, 4)
    prompts = {slot: [*prefix, *random_tokens(5 + slot, 10 + slot)] for slot in range(3)}
    driver = StepDriver.load(directory, page_size=16)
    driver.start(0)
    outputs = {0: [driver.prefill(0, prompts[0])], 1: [], 2: []}
    for slot in (1, 2):
        driver.start(slot)
        driver.share(slot, 0, len(prefix))
        outputs[slot].append(driver.prefill(slot, prompts[slot][len(prefix) :]))
    for _ in range(20):
        for slot, token in enumerate(driver.decode([0, 1, 2], [RowGroup(0, 3, 32)])):
            outputs[slot].append(token)
    for slot, prompt in prompts.items():
        assert len(outputs[slot]) == 21
        assert outputs[slot] == expected_greedy(model, prompt, outputs[slot])


def test_a_chunk_reads_shared_pages_in_one_group_with_decode_rows(
    pair: tuple[PreTrainedModel, Path],
) -> None:
    model, directory = pair
    prefix = random_tokens(37, 4)
    prompts = {slot: [*prefix, *random_tokens(5 + slot, 10 + slot)] for slot in range(3)}
    driver = StepDriver.load(directory, page_size=16)
    driver.start(0)
    outputs: dict[int, list[int]] = {0: [driver.prefill(0, prompts[0])], 1: [], 2: []}
    for slot in (1, 2):
        driver.start(slot)
        driver.share(slot, 0, len(prefix))
    outputs[1].append(driver.prefill(1, prompts[1][len(prefix) :]))
    unread = prompts[2][len(prefix) :]
    for chunk in (unread[:3], unread[3:], []):
        for _ in range(1 if chunk else 8):
            rows = [driver.row(0), driver.row(2, chunk, samples=int(chunk != unread[:3])), driver.row(1)]
            slots = [row.slot for row in rows if row.samples]
            collect(outputs, slots, driver.run(rows, [RowGroup(0, 3, 32)]).tokens)
    for slot, prompt in prompts.items():
        assert len(outputs[slot]) == (9 if slot == 2 else 11)
        assert outputs[slot] == expected_greedy(model, prompt, outputs[slot])


def collect(outputs: dict[int, list[int]], slots: list[int], tokens: bytes) -> None:
    sampled = torch.frombuffer(bytearray(tokens), dtype=torch.int32).tolist()
    for slot, token in zip(slots, sampled, strict=True):
        outputs[slot].append(token)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_the_older_spelling_of_rope_settings_means_the_same(family: str, tmp_path: Path) -> None:
    model = random_model(family, rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5})
    save_model(model, tmp_path)
    edit_config(
        tmp_path, rope_parameters=None, rope_scaling={"type": "linear", "factor": 4.0}, rope_theta=5e5
    )
    tokens = random_tokens(60)
    driver = StepDriver.load(tmp_path)
    driver.start(0, EVERY_LOGPROB)
    assert_close(driver.prompt_logprobs(0, tokens, 60), expected_logprobs(model, tokens)[:-1])


def test_dynamic_scaling_equals_transformers_at_the_full_stretched_length(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    model = random_model("llama", max_position_embeddings=64, rope_parameters=rope)
    save_model(model, tmp_path)
    tokens = random_tokens(100)
    driver = StepDriver.load(tmp_path, max_model_len=100)
    driver.start(0, EVERY_LOGPROB)
    assert_close(driver.prompt_logprobs(0, tokens, 33), expected_logprobs(model, tokens)[:-1])


def test_a_sharded_checkpoint_gives_the_same_logprobs(tmp_path: Path) -> None:
    model = random_model("qwen2")
    save_model(model, tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    tokens = random_tokens(30)
    driver = StepDriver.load(tmp_path)
    driver.start(0, EVERY_LOGPROB)
    assert_close(driver.prompt_logprobs(0, tokens, 30), expected_logprobs(model, tokens)[:-1])


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.5), ("float16", 0.1)])
def test_half_precision_stays_near_float32(tmp_path: Path, dtype: str, tolerance: float) -> None:
    model = random_model("qwen3")
    save_model(model, tmp_path)
    tokens = random_tokens(60)
    driver = StepDriver.load(tmp_path, dtype=dtype)
    driver.start(0, EVERY_LOGPROB)
    got = driver.prompt_logprobs(0, tokens, 25)
    assert (got - expected_logprobs(model, tokens)[:-1]).abs().max() < tolerance
