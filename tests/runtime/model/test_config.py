"""Supported model directories, and how all others are refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from arbora.runtime.errors import ConfigError
from arbora.runtime.model.decoder_config import load_decoder_config
from arbora.runtime.model.devices import choose_device, choose_dtype
from arbora.runtime.model.loading import load_model
from arbora.runtime.model.weight_formats import Checkpoint, WeightFormats, load_weight_formats
from arbora.runtime.model.weights import expected_tensors
from checkpoints import edit_config, random_model, save_model
from safetensors.torch import load_file, save_file
from step_driver import no_vocabulary, serve_config

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}


def write(directory: Path, **fields: Any) -> Path:
    config = {name: value for name, value in {**LLAMA, **fields}.items() if value is not None}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_model(random_model("qwen2", num_hidden_layers=1), tmp_path)


def refusal(model: Path, **fields: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_model(serve_config(model, **fields), no_vocabulary)
    return str(caught.value)


def test_missing_sizes_have_the_families_defaults(tmp_path: Path) -> None:
    config = load_decoder_config(write(tmp_path))
    layer = config.layers[0]
    assert layer.rope is not None
    assert (layer.kv_heads, layer.head_dim, layer.rope.theta) == (4, 16, 10000.0)
    assert config.cache_spec.windows == (None, None)
    assert config.dtype is None


@pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
def test_the_dtype_has_two_spellings(tmp_path: Path, name: str) -> None:
    assert load_decoder_config(write(tmp_path, **{name: "bfloat16"})).dtype == "bfloat16"


def test_the_dtype_asked_for_comes_before_the_one_stated_and_that_before_the_one_stored() -> None:
    assert choose_dtype("float16", "bfloat16", torch.float32) == torch.float16
    assert choose_dtype("auto", "bfloat16", torch.float32) == torch.bfloat16
    assert choose_dtype("auto", None, torch.float32) == torch.float32
    with pytest.raises(ConfigError, match="float64"):
        choose_dtype("auto", "float64", torch.float32)


@pytest.mark.parametrize(
    ("built_for", "reason"), [(None, "is built for CPUs only"), ("13.0", "newer\\s+driver")]
)
def test_a_gpu_that_cannot_be_used_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built_for: str | None, reason: str
) -> None:
    monkeypatch.setattr(torch.version, "cuda", built_for)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=reason):
        choose_device(serve_config(tmp_path, device="cuda"))


def test_a_gpu_without_triton_is_refused_with_the_package_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ConfigError, match="pip install triton"):
        choose_device(serve_config(tmp_path, device="cuda"))


def test_part_of_each_head_may_be_rotated(tmp_path: Path) -> None:
    rope = load_decoder_config(write(tmp_path, partial_rotary_factor=0.5)).layers[0].rope
    assert rope is not None and rope.dim == 8


@pytest.mark.parametrize(
    ("rope", "longest", "default"),
    [
        (None, 128, 128),
        ({"rope_type": "linear", "factor": 4.0}, 512, 512),
        ({"rope_type": "dynamic", "factor": 4.0}, 512, 128),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 100}, 400, 400),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 16}, 128, 128),
    ],
)
def test_the_way_of_stretching_decides_the_longest_and_the_default_context(
    tmp_path: Path, rope: dict[str, Any] | None, longest: int, default: int
) -> None:
    config = load_decoder_config(write(tmp_path, rope_scaling=rope))
    assert (config.max_positions, config.default_positions) == (longest, default)


def test_a_window_is_only_used_where_the_family_says_so(tmp_path: Path) -> None:
    def windows(architecture: str, **fields: Any) -> tuple[int | None, ...]:
        fields = {"architectures": [architecture], "sliding_window": 7, **fields}
        return load_decoder_config(write(tmp_path, **fields)).cache_spec.windows

    assert windows("LlamaForCausalLM") == (None, None)
    assert windows("MistralForCausalLM") == (7, 7)
    assert windows("Qwen2ForCausalLM", max_window_layers=1) == (None, None)
    assert windows("Qwen2ForCausalLM", max_window_layers=1, use_sliding_window=True) == (None, 7)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"architectures": ["OlmoForCausalLM"]}, ["OlmoForCausalLM", "Qwen3ForCausalLM"]),
        ({"architectures": None, "model_type": "t5"}, ["t5", "LlamaForCausalLM"]),
        ({"hidden_act": "gelu"}, ["gelu", "silu"]),
        ({"num_attention_heads": 6, "num_key_value_heads": 4}, ["6", "num_key_value_heads 4"]),
        ({"head_dim": 15}, ["head_dim 15"]),
        ({"hidden_size": "big"}, ["hidden_size", '"big"', "an integer"]),
        ({"vocab_size": None}, ["vocab_size", "missing"]),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, ["longrope", "llama3"]),
        ({"rope_scaling": {"rope_type": "linear"}}, ["linear", "factor"]),
        (
            {"rope_scaling": {"rope_type": "linear", "factor": "x"}},
            ['rope_parameters: factor is "x", but must be a number.'],
        ),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, ["full_attention"]),
        (
            {
                "architectures": ["Qwen3ForCausalLM"],
                "sliding_window": 8,
                "use_sliding_window": True,
                "layer_types": ["chunked_attention"] * 2,
            },
            ["chunked_attention", "sliding_attention"],
        ),
    ],
)
def test_unsupported_models_are_refused_by_name(
    tmp_path: Path, fields: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_decoder_config(write(tmp_path, **fields))
    assert all(word in str(caught.value) for word in ["config.json", *words]), caught.value


def test_a_directory_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json: can't be read"):
        load_decoder_config(tmp_path)


def test_broken_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": ')
    with pytest.raises(ConfigError, match=r"config\.json"):
        load_decoder_config(tmp_path)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (
            '{"architectures": ["LlamaForCausalLM"], "hidden_size": "1024"}',
            'hidden_size is "1024", but must be an integer.',
        ),
        ('{"architectures": "Qwen3ForCausalLM"}', 'architectures is "Qwen3ForCausalLM", but must be a list.'),
        ("[1]", "the file is a list, but must be an object."),
        ('{"architectures": "Qwen3ForCausalLM", "x": [', "architectures is a string, but must be a list."),
    ],
)
def test_a_value_of_another_type_is_named(tmp_path: Path, text: str, wrong: str) -> None:
    config = tmp_path / "config.json"
    config.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_decoder_config(tmp_path)
    assert str(refused.value) == f"{config}: {wrong} Copy or download it again."


def test_a_directory_without_weights_is_refused(model: Path) -> None:
    (model / "model.safetensors").unlink()
    assert "model.safetensors" in refusal(model)


def test_a_truncated_file_is_refused(model: Path) -> None:
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert "not a whole safetensors file" in refusal(model)
    config = model / "config.json"
    config.write_bytes(config.read_bytes()[:-10])
    assert f"{config}: not a whole JSON file" in refusal(model)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("model.layers.0.self_attn.k_proj.bias", "[32]"), ("model.embed_tokens.weight", "[300, 64]")],
)
def test_a_missing_tensor_is_named_with_its_shape(model: Path, name: str, shape: str) -> None:
    change_tensors(model, {name: None})
    assert f"tensor {name} {shape} of F32, F16, BF16 is missing" in refusal(model)


def test_a_misshapen_tensor_is_named_with_both_shapes(model: Path) -> None:
    change_tensors(model, {"model.norm.weight": torch.zeros(63)})
    assert "model.norm.weight: expected [64]" in refusal(model)


def test_a_tensor_of_another_kind_is_refused(model: Path) -> None:
    change_tensors(model, {"model.norm.weight": torch.zeros(64, dtype=torch.int8)})
    assert "of I8" in refusal(model)


def test_a_tensor_that_the_architecture_has_no_place_for_is_refused(model: Path) -> None:
    change_tensors(model, {"model.layers.0.self_attn.o_proj.bias": torch.zeros(64)})
    assert "o_proj.bias is not part" in refusal(model)


def test_superfluous_tensors_of_old_checkpoints_are_ignored(model: Path) -> None:
    change_tensors(model, {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)})
    load_model(serve_config(model), no_vocabulary)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    save_model(random_model("llama", num_hidden_layers=1), tmp_path, max_shard_size="50KB")
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    shard.unlink()
    assert shard.name in refusal(tmp_path)


def test_an_index_that_misplaces_a_tensor_is_refused(tmp_path: Path) -> None:
    save_model(random_model("llama", num_hidden_layers=1), tmp_path, max_shard_size="50KB")
    index = tmp_path / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.norm.weight"] = content["weight_map"]["model.embed_tokens.weight"]
    index.write_text(json.dumps(content))
    assert "model.norm.weight" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"page_size": 0}, ["page_size 0", "1 to 256"]),
        ({"page_size": 257}, ["page_size 257"]),
        ({"max_model_len": 257}, ["--max-model-len 257", "1 to 256"]),
        ({"max_model_len": 256, "kv_memory": 9000}, ["--kv-memory 9kB", "--max-model-len", "64KiB"]),
    ],
)
def test_settings_that_the_model_cant_meet_are_refused(
    model: Path, fields: dict[str, Any], words: list[str]
) -> None:
    message = refusal(model, **fields)
    assert all(word in message for word in words), message


def test_the_expected_tensors_are_those_that_transformers_saves(tmp_path: Path) -> None:
    for family in ("gemma2", "gemma3", "llama", "mistral", "qwen2", "qwen3"):
        directory = save_model(random_model(family), tmp_path / family)
        stored = {
            name: (tuple(tensor.shape),)
            for name, tensor in load_file(directory / "model.safetensors").items()
        }
        expected = expected_tensors(load_decoder_config(directory), formats(directory).choose)
        assert {name: spec.shapes for name, spec in expected.items()} == stored


def test_a_stored_copy_of_a_tied_head_is_ignored(model: Path) -> None:
    edit_config(model, tie_word_embeddings=True)
    config = load_decoder_config(model)
    expected = expected_tensors(config, formats(model).choose)
    assert "lm_head.weight" not in expected
    Checkpoint(model).check(expected)


def formats(model: Path) -> WeightFormats:
    return load_weight_formats(model, Checkpoint(model).names)


def change_tensors(model: Path, changes: dict[str, torch.Tensor | None]) -> None:
    """Set tensors of the checkpoint; None removes one."""
    path = model / "model.safetensors"
    tensors = {**load_file(path), **changes}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)


def test_a_model_with_windows_has_its_prompts_computed_by_no_other_server(tmp_path: Path) -> None:
    save_model(random_model("gemma3"), tmp_path)
    for field, value in (("prefill_at", "ipc:///p"), ("prefill_from", ("ipc:///p",))):
        refused = refusal(tmp_path, **{field: value})
        assert refused.startswith(
            f"--{field.replace('_', '-')}: this model has layers with windows or states"
        )
