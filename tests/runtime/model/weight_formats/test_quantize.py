"""Rounding to 8 and 4 bits, and the copies that `--quantize` keeps on disk."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
import step_driver
import torch
from arbora.frontend.core.text.tokenizer import Tokenizer
from arbora.frontend.model_files.gguf.config import model_config
from arbora.runtime.byte_sizes import in_units
from arbora.runtime.config import BUILTIN_MODEL
from arbora.runtime.gguf_file import GgufFile
from arbora.runtime.model.loading import load_model
from arbora.runtime.model.weight_formats import (
    Checkpoint,
    Projection,
    quantized_cache,
    quantized_checkpoint,
)
from arbora.runtime.model.weight_formats.quantize import round_to_fp8, round_to_int4, round_to_int8
from arbora.runtime.sampling_params import SamplingParams
from checkpoints import change_tensor, random_model, save_model
from gguf import GGMLQuantizationType as Type
from gguf_models import one_type, write_gguf
from hypothesis import given, settings
from hypothesis import strategies as st
from quantized_checkpoints import CASES, write_quantized
from step_driver import StepDriver, full_logprobs, packed
from transformers_oracle import EVERY_LOGPROB, expected_logprobs, random_tokens

BFLOAT16_STEP = 2**-7
"""between neighbouring values, at most, relative to them"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "arbora" / "quantized"


weights = st.builds(
    lambda seed, size, spread: (
        torch.randn(6, 128, generator=torch.Generator().manual_seed(seed))
        .mul(size)
        .where(torch.rand(6, 128, generator=torch.Generator().manual_seed(seed)) > spread, torch.tensor(0.0))
    ),
    st.integers(0, 10_000),
    st.sampled_from([1e-12, 1e-4, 1.0, 1e6]),
    st.sampled_from([0.0, 0.5, 0.95, 1.0]),
)


def grouped(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    whole: torch.Tensor = codes.float().view(*scales.shape, -1) * scales.float().unsqueeze(2)
    return whole.flatten(1)


@given(weight=weights, group=st.sampled_from([16, 32, 128]))
@settings(max_examples=60, deadline=None)
def test_8_bits_round_each_weight_to_the_nearest_multiple_of_its_groups_scale(
    weight: torch.Tensor, group: int
) -> None:
    codes, scales = round_to_int8(weight, group)
    steps = scales.float().repeat_interleave(group, 1)
    largest = weight.view(6, -1, group).abs().amax(2).repeat_interleave(group, 1)
    assert ((grouped(codes, scales) - weight).abs() <= 0.5001 * steps).all()
    assert (steps * 127 >= largest).all()
    assert (steps * 127 <= largest * (1 + BFLOAT16_STEP)).all()


@given(weight=weights)
@settings(max_examples=60, deadline=None)
def test_fp8_rounds_each_weight_to_a_nearest_value_of_its_outputs_scale(weight: torch.Tensor) -> None:
    codes, scales = round_to_fp8(weight)
    assert codes.dtype == torch.float8_e4m3fn and codes.float().isfinite().all()
    largest, whole = weight.abs().amax(1, keepdim=True), scales.float()
    assert (whole * 448 >= largest).all() and (whole * 448 <= largest * (1 + BFLOAT16_STEP)).all()
    # Half of the last of 4 bits, and of the smallest subnormal value.
    bound = 1.0001 * torch.maximum(weight.abs() * 2**-4, whole * 2**-10)
    assert ((codes.float() * whole - weight).abs() <= bound).all()


@given(weight=weights)
@settings(max_examples=60, deadline=None)
def test_4_bits_are_at_least_as_exact_as_a_scale_that_only_fits_the_extreme_value(
    weight: torch.Tensor,
) -> None:
    codes, scales = round_to_int4(weight, 32)
    assert codes.min() >= -8 and codes.max() <= 7
    groups = weight.double().view(6, -1, 32)
    extreme = groups.gather(2, groups.abs().argmax(2, keepdim=True))
    plain = extreme / -8
    rounded = (groups / plain.where(plain != 0, 1)).round().clamp(-8, 7) * plain
    error = (grouped(codes, scales).double() - weight).view(6, -1, 32).square().sum(2)
    slack = (BFLOAT16_STEP / 2) ** 2 * groups.square().sum(2)  # the scale itself is rounded
    assert (error <= (rounded - groups).square().sum(2) + slack).all()


def test_the_scale_of_4_bits_is_the_best_of_a_fine_search() -> None:
    torch.manual_seed(0)
    weight = torch.randn(64, 32)
    error = (grouped(*round_to_int4(weight, 32)) - weight).square().sum(1)
    scales = torch.linspace(-0.6, 0.6, 2001)[:, None, None]
    every = ((weight / scales).round().clamp(-8, 7) * scales - weight).square().sum(2)
    best = every[scales.flatten() != 0].amin(0)
    assert error.sum() < 1.02 * best.sum()
    absmax = weight.abs().amax(1, keepdim=True) / 7
    assert error.sum() < 0.8 * ((weight / absmax).round() * absmax - weight).square().sum()


def mean_divergence(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((expected.exp() * (expected - got)).sum(1).mean())


def load(model: Path, **fields: Any) -> StepDriver:
    return StepDriver.load(model, **fields)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize(("method", "most"), [("int8", 5e-3), ("int4", 0.15), ("fp8", 0.02)])
def test_a_quantized_model_stays_near_the_original(
    tmp_path: Path, family: str, method: str, most: float
) -> None:
    tied = family == "qwen3"
    model = random_model(family, tie_word_embeddings=tied)
    save_model(model, tmp_path / "model")
    tokens = random_tokens(60)
    driver = load(tmp_path / "model", quantize=method)
    driver.start(0, EVERY_LOGPROB)
    got, expected = driver.prompt_logprobs(0, tokens, 37), expected_logprobs(model, tokens)[:-1]
    assert 1e-7 < mean_divergence(got, expected) < most


def builtin_logprobs(text: str, **fields: Any) -> torch.Tensor:
    data = Tokenizer.load(BUILTIN_MODEL).encode(text)
    tokens = torch.frombuffer(bytearray(data), dtype=torch.int32).tolist()
    driver = load(BUILTIN_MODEL, **fields)
    driver.start(0, SamplingParams(max_tokens=1, temperature=0.0, logprobs=2048, prompt_logprobs=2048))
    row = driver.row(0, tokens, targets=packed(tokens[1:]))
    return torch.cat([full_logprobs(part.logprobs, 2048) for part in driver.run([row]).prompt_logprobs])


TEXT = """<|im_start|>user
Extract as JSON the city and the day: I fly to Paris on Monday.<|im_end|>
<|im_start|>assistant
{"city": "Paris", "day": "Monday"}<|im_end|>
"""


@pytest.mark.parametrize(("method", "sure"), [("int8", 0.5), ("int4", 2.0), ("fp8", 1.0)])
def test_the_built_in_model_chooses_the_same_tokens_if_it_is_sure(method: str, sure: float) -> None:
    expected = builtin_logprobs(TEXT)
    got = builtin_logprobs(TEXT, quantize=method)
    best = expected.topk(2).values
    decided = best[:, 0] - best[:, 1] > sure
    assert decided.sum() > 20
    assert torch.equal(got.argmax(1)[decided], expected.argmax(1)[decided])


def test_the_second_start_reads_the_copy(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(random_model("qwen2"), tmp_path / "model")
    load(tmp_path / "model", quantize="int8")
    (made,) = cache.iterdir()

    def never(*arguments: object) -> None:
        raise AssertionError("quantized again")

    with monkeypatch.context() as patched:
        patched.setattr(quantized_cache, "write_quantized", never)
        load(tmp_path / "model", quantize="int8")
    load(tmp_path / "model", quantize="int4")
    os.utime(tmp_path / "model" / "model.safetensors", (1, 1))
    load(tmp_path / "model", quantize="int8")
    assert made.exists() and len(list(cache.iterdir())) == 3


def test_another_server_may_make_the_copy_at_the_same_time(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(random_model("qwen2"), tmp_path / "model")
    load(tmp_path / "model", quantize="int8")
    (target,) = cache.iterdir()
    made = target.rename(tmp_path / "made")

    def another(scratch: Path, *arguments: Any) -> None:
        (scratch / "file").touch()
        made.rename(target)

    monkeypatch.setattr(quantized_cache, "write_quantized", another)
    load(tmp_path / "model", quantize="int8")
    assert list(cache.iterdir()) == [target] and not (target / "file").exists()


@pytest.mark.parametrize("start", ["the first", "a later"])
def test_the_log_says_the_bytes_of_the_copy_and_of_the_cache(
    tmp_path: Path, cache: Path, start: str, caplog: pytest.LogCaptureFixture
) -> None:
    save_model(random_model("qwen2"), tmp_path / "model")
    if start == "a later":
        load(tmp_path / "model", quantize="int4")
    caplog.clear()
    with caplog.at_level(logging.INFO):
        config = step_driver.serve_config(tmp_path / "model", quantize="int4", kv_dtype="int8")
        ready = load_model(config, step_driver.no_vocabulary).ready
    size = in_units(sum(path.stat().st_size for path in cache.glob("*/*.safetensors")))
    assert any("quantized" in each and size in each for each in caplog.messages), caplog.messages
    (told,) = [each for each in caplog.messages if each.startswith("KV cache: ")]
    assert " tokens of int8 in " in told and in_units(ready.num_pages * ready.page_bytes) in told


@pytest.mark.parametrize("file", ["model-00001.safetensors", "config.json", "model.safetensors.index.json"])
def test_a_broken_copy_is_made_again(
    tmp_path: Path, cache: Path, file: str, caplog: pytest.LogCaptureFixture
) -> None:
    save_model(random_model("qwen2"), tmp_path / "model")
    load(tmp_path / "model", quantize="int4")
    (path,) = cache.glob(f"*/{file}")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    load(tmp_path / "model", quantize="int4")
    assert "broken and will be made again" in caplog.text
    assert path.read_bytes() == whole
    path.unlink()
    load(tmp_path / "model", quantize="int4")
    assert path.read_bytes() == whole


def test_large_models_are_written_in_several_files(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(random_model("qwen2"), tmp_path / "model")
    monkeypatch.setattr(quantized_checkpoint, "SHARD", 20_000)
    load(tmp_path / "model", quantize="int8")
    assert len(list(cache.glob("*/*.safetensors"))) > 3


def test_the_copies_used_longest_ago_are_removed(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(random_model("qwen2"), tmp_path / "model")
    load(tmp_path / "model", quantize="int8")
    (first,) = cache.iterdir()
    (cache / ".part-old").mkdir()
    (cache / ".part-new").mkdir()
    for path in (first, cache / ".part-old"):
        os.utime(path, (1, 1))
    monkeypatch.setattr(quantized_cache, "MAX_BYTES", 1000)
    load(tmp_path / "model", quantize="int4")
    assert not first.exists() and not (cache / ".part-old").exists()
    assert (cache / ".part-new").exists() and len(list(cache.iterdir())) == 2


def test_a_gguf_file_in_16_bits_may_be_quantized(tmp_path: Path) -> None:
    model = write_gguf(tmp_path / "model.gguf", "llama", one_type(Type.F16))
    (tmp_path / "config.json").write_text(json.dumps(model_config(GgufFile(tmp_path / "model.gguf"))))
    tokens = random_tokens(20)
    driver = load(tmp_path, quantize="int8")
    driver.start(0, EVERY_LOGPROB)
    got, expected = driver.prompt_logprobs(0, tokens, 20), expected_logprobs(model, tokens)[:-1]
    assert 1e-7 < mean_divergence(got, expected) < 3e-2


def refusal(model: Path, method: str = "int4") -> str:
    return step_driver.refusal(model, quantize=method)


def test_a_quantized_gguf_file_is_refused_by_its_own_name(tmp_path: Path) -> None:
    file = tmp_path / "original.gguf"
    write_gguf(file, "llama", one_type(Type.Q8_0))
    directory = tmp_path / "directory"
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(model_config(GgufFile(file))))
    (directory / "model.gguf").symlink_to(file)
    assert refusal(directory).startswith(f"--quantize int4: {file} is already quantized (GGUF).")


def test_a_quantized_checkpoint_is_refused(tmp_path: Path) -> None:
    write_quantized(CASES["gptq"], tmp_path)
    assert "is already quantized (gptq). Leave the option out" in refusal(tmp_path)


def test_sizes_that_no_group_divides_are_refused(tmp_path: Path, cache: Path) -> None:
    save_model(random_model("qwen2", intermediate_size=100), tmp_path / "model")
    assert "has 100 inputs, which is no multiple of 16" in refusal(tmp_path / "model")
    assert list(cache.iterdir()) == []


def test_fp8_has_no_groups_that_must_divide_the_layers_sizes(tmp_path: Path, cache: Path) -> None:
    save_model(random_model("qwen2", intermediate_size=100), tmp_path / "model")
    load(tmp_path / "model", quantize="fp8")
    assert len(list(cache.iterdir())) == 1


def test_values_that_are_not_finite_are_named(tmp_path: Path) -> None:
    model = random_model("qwen2")
    model.model.layers[1].mlp.up_proj.weight.data[3, 4] = float("inf")
    save_model(model, tmp_path / "model")
    for method in ("int8", "int4", "fp8"):
        message = refusal(tmp_path / "model", method)
        name = "model.layers.1.mlp.up_proj.weight"
        assert f"model.safetensors: tensor {name} has values that are NaN or infinite" in message


def test_a_norm_that_is_not_finite_is_named_with_the_original_file(tmp_path: Path) -> None:
    save_model(random_model("qwen2"), tmp_path)
    change_tensor(tmp_path, "model.norm.weight", torch.full((64,), torch.nan))
    expected = f"{tmp_path}/model.safetensors: tensor model.norm.weight has values that are NaN or infinite"
    assert expected in refusal(tmp_path)


def test_an_error_about_an_unwritable_cache_says_where_it_is(tmp_path: Path, cache: Path) -> None:
    save_model(random_model("qwen2"), tmp_path / "model")
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where the directory should be")
    message = refusal(tmp_path / "model")
    assert str(cache) in message and "XDG_CACHE_HOME" in message


def test_the_copy_holds_4_bits_for_layers_and_8_for_the_vocabulary(tmp_path: Path, cache: Path) -> None:
    save_model(random_model("qwen2", num_hidden_layers=3), tmp_path / "model")
    load(tmp_path / "model", quantize="int4")
    copy = Checkpoint(next(cache.iterdir()))
    for name in ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj"):
        assert all(copy.dtype(f"model.layers.{layer}.{name}.weight_packed") == "I32" for layer in range(3))
    assert copy.dtype("model.layers.0.mlp.down_proj.weight") == "I8"
    assert copy.dtype("model.layers.1.mlp.down_proj.weight_packed") == "I32"
    assert copy.dtype("model.layers.2.mlp.down_proj.weight") == "I8"
    assert copy.dtype("lm_head.weight") == copy.dtype("model.embed_tokens.weight") == "I8"
    assert copy.dtype("model.layers.0.input_layernorm.weight") == "F32"


@pytest.mark.parametrize(
    ("layers", "with_int8"),
    [
        (1, [0]),
        (4, [0, 3]),
        (28, [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 25, 26, 27]),
        (32, [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]),
    ],
)
def test_about_half_of_the_down_projections_hold_8_bits(layers: int, with_int8: list[int]) -> None:
    names = [f"model.layers.{layer}.mlp.{part}_proj" for layer in range(layers) for part in ("up", "down")]
    embedding = Projection("model.embed_tokens", 256, 256, kind="Embedding")
    projections = [embedding, *(Projection(name, 256, 256) for name in names)]
    groups = quantized_checkpoint.quantization_config("int4", projections)["config_groups"]
    downs = [f"model.layers.{layer}.mlp.down_proj" for layer in with_int8]
    assert groups["int8"]["targets"] == ["lm_head", "model.embed_tokens", *downs]
    assert groups["layers"]["weights"] == {"num_bits": 4, "strategy": "group", "group_size": 128}


def test_the_copy_holds_fp8_for_layers_and_int8_for_the_vocabulary(tmp_path: Path, cache: Path) -> None:
    save_model(random_model("qwen2"), tmp_path / "model")
    load(tmp_path / "model", quantize="fp8")
    copy = Checkpoint(next(cache.iterdir()))
    assert copy.dtype("model.layers.0.mlp.down_proj.weight") == "F8_E4M3"
    assert copy.dtype("lm_head.weight") == copy.dtype("model.embed_tokens.weight") == "I8"
