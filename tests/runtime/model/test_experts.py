"""Native models with experts: quantized weights, recorded steps, and checkpoints that are refused."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from arbora.runtime.model.decoder import Decoder
from arbora.runtime.model.feed_forward import ExpertFeedForward
from checkpoints import change_tensor, edit_config, random_model, save_model
from quantizers import mxfp4
from safetensors.torch import load_file, save_file
from step_driver import GREEDY, StepDriver, refusal
from transformers import PreTrainedModel
from transformers_oracle import EVERY_LOGPROB, expected_logprobs, random_tokens

FAMILIES = ("gpt_oss", "mixtral", "qwen3_moe")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def save(family: str, directory: Path, **fields: Any) -> PreTrainedModel:
    model = random_model(family, **fields)
    save_model(model, directory)
    return model


def logprobs(directory: Path, tokens: list[int]) -> torch.Tensor:
    driver = StepDriver.load(directory)
    assert isinstance(driver.runner._model, Decoder)
    driver.start(0, EVERY_LOGPROB)
    return driver.prompt_logprobs(0, tokens, 25)


@torch.no_grad()
def expected_feed_forward(experts: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """What transformers computes for rows [tokens, hidden]. Some of its classes return the shares too."""
    result = experts(x.unsqueeze(0))
    rows: torch.Tensor = result[0] if isinstance(result, tuple) else result
    return rows.squeeze(0)


def write_mxfp4(model: PreTrainedModel, directory: Path) -> None:
    """Quantizes the experts as the published checkpoints of gpt-oss are, and the model to the same values."""
    tensors = load_file(directory / "model.safetensors")
    for layer in range(model.config.num_hidden_layers):
        for name in ("gate_up_proj", "down_proj"):
            stacked = f"model.layers.{layer}.mlp.experts.{name}"
            parts = [mxfp4()(weight.T.contiguous()) for weight in tensors.pop(stacked)]
            blocks = torch.stack([part.tensors["weight_packed"] for part in parts])
            tensors[f"{stacked}_blocks"] = blocks.view(*blocks.shape[:2], -1, 16)
            tensors[f"{stacked}_scales"] = torch.stack([part.tensors["weight_scale"] for part in parts])
            exact = torch.stack([part.weight.T for part in parts])
            model.get_parameter(stacked).data.copy_(exact)
    save_file(tensors, directory / "model.safetensors")
    edit_config(directory, quantization_config={"quant_method": "mxfp4"})


def test_mxfp4_experts_equal_their_dequantized_weights(tmp_path: Path) -> None:
    """In float32 only the activations of the experts are rounded, to 8 bits. Each token has all experts, so
    that rounding can't make a router choose others."""
    model = save("gpt_oss", tmp_path, num_experts_per_tok=6)
    write_mxfp4(model, tmp_path)
    tokens = random_tokens(60)
    found, expected = logprobs(tmp_path, tokens), expected_logprobs(model, tokens)[:-1]
    assert (found - expected).abs().max() < 0.25
    assert (found.argmax(1) == expected.argmax(1)).float().mean() > 0.95


@pytest.mark.parametrize(("family", "quantize"), [("gpt_oss", "mxfp4"), *product(FAMILIES, ("int8", "int4"))])
def test_experts_are_quantized(family: str, quantize: str, tmp_path: Path) -> None:
    """Each layer gets the same inputs as that of transformers. Over several layers the rounding of one may
    change the choice of the next one's router, and then results differ a lot."""
    model = save(family, tmp_path)
    if quantize == "mxfp4":
        write_mxfp4(model, tmp_path)
    decoder = StepDriver.load(tmp_path, quantize=None if quantize == "mxfp4" else quantize).runner._model
    assert isinstance(decoder, Decoder)
    x = torch.randn(60, model.config.hidden_size, generator=torch.Generator().manual_seed(0))
    for layer, expected_layer in zip(decoder._weights.layers, model.model.layers, strict=True):
        expected = expected_feed_forward(expected_layer.mlp, x)
        error = (layer.feed_forward(x) - expected).norm(dim=1) / expected.norm(dim=1)
        assert 0 < error.mean() < {"mxfp4": 0.02, "int8": 0.02, "int4": 0.16}[quantize]
        assert error.max() < {"mxfp4": 0.04, "int8": 0.04, "int4": 0.32}[quantize]


def test_a_row_has_the_same_bits_beside_others_if_it_must(tmp_path: Path) -> None:
    save("qwen3_moe", tmp_path)
    driver = StepDriver.load(tmp_path, dtype="bfloat16", deterministic=True)
    prompts = [random_tokens(40), random_tokens(23)]
    for slot in (0, 1, 2):
        driver.start(slot, GREEDY)
    outputs = [
        [driver.prefill(0, prompts[0], 7)],
        [driver.prefill(1, prompts[1])],
        [driver.prefill(2, prompts[0])],
    ]
    for _ in range(8):
        for slot, token in enumerate(driver.decode([0, 1, 2])):
            outputs[slot].append(token)
    assert outputs[0] == outputs[2]


@pytest.mark.parametrize(
    ("family", "name", "shape", "told"),
    [
        (
            "qwen3_moe",
            "model.layers.1.mlp.experts.5.up_proj.weight",
            None,
            "[32, 64] of F32, F16, BF16 is missing",
        ),
        ("qwen3_moe", "model.layers.1.mlp.experts.5.up_proj.weight", (32, 8), "got [32, 8] of F32"),
        ("mixtral", "model.layers.0.block_sparse_moe.experts.3.w2.weight", (64, 8), "got [64, 8] of F32"),
        ("qwen3_moe", "model.layers.2.mlp.gate.weight", (7, 64), "expected [8, 64]"),
        ("gpt_oss", "model.layers.1.mlp.experts.down_proj", (6, 64, 64), "expert 0: expected [64, 96]"),
        ("gpt_oss", "model.layers.0.self_attn.sinks", None, "[4] of F32, F16, BF16 is missing"),
    ],
)
def test_a_missing_or_misshapen_tensor_is_named(
    family: str, name: str, shape: tuple[int, ...] | None, told: str, tmp_path: Path
) -> None:
    save(family, tmp_path)
    change_tensor(tmp_path, name, None if shape is None else torch.zeros(shape))
    message = refusal(tmp_path, model_impl="native")
    assert name in message and told in message


def test_too_few_stacked_experts_are_named(tmp_path: Path) -> None:
    save("gpt_oss", tmp_path)
    edit_config(tmp_path, num_local_experts=7)
    for layer in range(3):
        router = f"model.layers.{layer}.mlp.router"
        change_tensor(tmp_path, f"{router}.weight", torch.zeros(7, 64))
        change_tensor(tmp_path, f"{router}.bias", torch.zeros(7))
    assert "mlp.experts.6.gate_proj.weight" in refusal(tmp_path, model_impl="native")


@pytest.mark.parametrize(
    ("fields", "told"), [({"num_experts_per_tok": 9}, "1 to"), ({"decoder_sparse_step": 0}, "1 or more")]
)
def test_wrong_numbers_of_experts_are_named(fields: dict[str, int], told: str, tmp_path: Path) -> None:
    save("qwen3_moe", tmp_path)
    edit_config(tmp_path, **fields)
    (field,) = fields
    message = refusal(tmp_path, model_impl="native")
    assert field in message and told in message


def test_our_own_code_has_the_experts(tmp_path: Path) -> None:
    save("qwen3_moe", tmp_path, mlp_only_layers=[1])
    model = StepDriver.load(tmp_path).runner._model
    assert isinstance(model, Decoder)
    kinds = [isinstance(layer.feed_forward, ExpertFeedForward) for layer in model._weights.layers]
    assert kinds == [True, False, True]
