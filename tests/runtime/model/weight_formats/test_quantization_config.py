"""The projections that a quantization config quantizes, and the configs that are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from arbora.runtime.errors import ConfigError
from arbora.runtime.model.weight_formats import Projection, load_weight_formats
from arbora.runtime.model.weight_formats.weight_format import FloatFormat
from checkpoints import change_tensor, edit_config, random_model, save_model
from quantized_checkpoints import AWQ, CASES, FP8, GPTQ, GROUP4, compressed, write_quantized
from step_driver import refusal

LAYER = "model.layers.1."
NAMES = ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj")


def write_config(directory: Path, **fields: Any) -> Path:
    (directory / "config.json").write_text(json.dumps(fields))
    return directory


def quantized(directory: Path, config: dict[str, Any], stored: frozenset[str] = frozenset()) -> list[str]:
    """The quantized projections among layer 1's NAMES, the first of layer 10, the head and the embedding."""
    choose = load_weight_formats(write_config(directory, quantization_config=config), stored).choose
    projections = [Projection(LAYER + name, 8, 8) for name in NAMES]
    projections += [Projection("model.layers.10." + NAMES[0], 8, 8), Projection("lm_head", 8, 8)]
    projections.append(Projection("model.embed_tokens", 8, 8, kind="Embedding"))
    return [each.name for each in projections if not isinstance(choose(each), FloatFormat)]


ALL = [LAYER + name for name in NAMES] + ["model.layers.10.self_attn.q_proj"]


@pytest.mark.parametrize(
    ("listed", "left_out"),
    [
        (["lm_head"], []),
        (["mlp"], ALL[2:4]),
        (["down_proj"], ALL[3:4]),
        (["gate"], []),
        (["model.layers.1"], ALL[:4]),
        (["layers.10"], ALL[4:]),
        ([r"re:.*q_proj$"], [ALL[0], ALL[4]]),
        ([r"model.layers.\d+.mlp"], ALL[2:4]),
    ],
)
def test_unquantized_modules_are_named_by_parts_ends_or_patterns(
    tmp_path: Path, listed: list[str], left_out: list[str]
) -> None:
    expected = [name for name in ALL if name not in left_out]
    assert quantized(tmp_path, {**FP8, "modules_to_not_convert": listed}) == expected
    assert quantized(tmp_path, {**FP8, "ignored_layers": listed}) == expected
    assert quantized(tmp_path, {**AWQ, "modules_to_not_convert": listed}) == expected


def test_compressed_tensors_ignores_names_patterns_and_classes(tmp_path: Path) -> None:
    def with_ignored(*ignore: str) -> list[str]:
        return quantized(tmp_path, compressed("pack-quantized", ignore, **GROUP4))

    assert with_ignored() == [*ALL, "lm_head"]
    assert with_ignored("lm_head", LAYER + NAMES[0]) == ALL[1:]
    assert with_ignored("lm_head", "mlp", r"re:.*\.layers\.1\..*") == ALL[4:]
    assert with_ignored("Linear") == []


def test_the_closest_target_gives_a_projection_its_scheme(tmp_path: Path) -> None:
    config = compressed("mixed-precision", **GROUP4)
    groups = config["config_groups"]
    groups["group_0"]["format"] = "pack-quantized"
    groups["later"] = {
        "targets": [r"re:.*down_proj"],
        "weights": {"num_bits": 8, "strategy": "channel"},
        "format": "int-quantized",
    }
    choose = load_weight_formats(write_config(tmp_path, quantization_config=config), frozenset()).choose
    tensors = {name: choose(p).tensors(p).keys() for name in NAMES for p in [Projection(LAYER + name, 8, 8)]}
    assert "weight_packed" in tensors["mlp.gate_proj"]
    assert "weight" in tensors["mlp.down_proj"]


def test_an_embedding_is_quantized_only_if_a_target_says_so(tmp_path: Path) -> None:
    config = compressed("int-quantized", strategy="channel")
    assert "model.embed_tokens" not in quantized(tmp_path, config)
    config["config_groups"]["group_0"]["targets"].append("Embedding")
    assert "model.embed_tokens" in quantized(tmp_path, config)


def test_a_head_is_quantized_if_it_is_stored_quantized(tmp_path: Path) -> None:
    assert "lm_head" not in quantized(tmp_path, GPTQ)
    assert "lm_head" in quantized(tmp_path, GPTQ, frozenset({"lm_head.qweight"}))


def test_the_old_name_of_the_config_is_read(tmp_path: Path) -> None:
    config = compressed("pack-quantized", **GROUP4)
    del config["quant_method"]
    assert load_weight_formats(write_config(tmp_path, compression_config=config), frozenset()).method == (
        "compressed-tensors"
    )


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            {"quant_method": "bitsandbytes"},
            [
                "bitsandbytes",
                "awq, compressed-tensors, fp8, gptq",
                "--quantize int4, int8 or fp8",
                "GGUF",
            ],
        ),
        ({"load_in_4bit": True}, ["bitsandbytes"]),
        ({"quant_method": "hqq"}, ["hqq", "gptq"]),
        ({"quant_method": "gguf"}, ["gguf"]),
        ({"bits": 4}, ["quant_method missing"]),
        ({**GPTQ, "bits": 3}, ["gptq", "bits 3", "4 and 8"]),
        ({**GPTQ, "bits": None}, ["gptq", "bits is null, but must be an integer."]),
        ({**GPTQ, "bits": "3"}, ['(gptq): bits is "3", but must be an integer.']),
        ({"quant_method": "gptq"}, ["(gptq): the field bits is missing."]),
        ({**GPTQ, "checkpoint_format": "marlin"}, ["marlin", "gptq_v2"]),
        ({**GPTQ, "dynamic": {"-:.*": {}}}, ["dynamic"]),
        ({**GPTQ, "group_size": 0}, ["group_size 0"]),
        ({**AWQ, "bits": 8}, ["awq", "bits 8"]),
        ({**AWQ, "version": "gemv"}, ["gemv", "gemm"]),
        ({**AWQ, "zero_point": False}, ["zero_point False"]),
        ({**FP8, "fmt": "e5m2"}, ["e5m2", "e4m3"]),
        ({**FP8, "scale_fmt": "ue8m0"}, ["ue8m0"]),
        ({**FP8, "weight_block_size": [0, 128]}, ["weight_block_size"]),
        ({**FP8, "modules_to_not_convert": ["re:("]}, ["re:(", "regex"]),
        (compressed("pack-quantized", num_bits=2, strategy="channel"), ["pack-quantized", "2 bits"]),
        (
            compressed("pack-quantized", num_bits="4"),
            ['config_groups[...].weights.num_bits is "4", but must be an integer.'],
        ),
        (compressed("nvfp4-pack-quantized", num_bits=4, type="float"), ["nvfp4-pack-quantized"]),
        (compressed("marlin-24", **GROUP4), ["marlin-24"]),
        (compressed("pack-quantized", num_bits=4, strategy="tensor"), ["strategy tensor"]),
        (compressed("int-quantized", strategy="channel", actorder="group"), ["actorder group"]),
        (compressed("pack-quantized", **GROUP4, actorder="random"), ["actorder random"]),
        (compressed("float-quantized", type="float", strategy="block"), ["block_structure None"]),
        ({**compressed("dense"), "kv_cache_scheme": {"num_bits": 8}}, ["kv_cache_scheme"]),
        ({**compressed("dense"), "sparsity_config": {"format": "sparse-24-bitmask"}}, ["sparse-24-bitmask"]),
        ({**compressed("dense"), "transform_config": {"config_groups": {"u": {}}}}, ["transform_config"]),
    ],
)
def test_an_unsupported_setting_is_refused_by_its_name(
    tmp_path: Path, config: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_weight_formats(write_config(tmp_path, quantization_config=config), frozenset())
    assert all(word in str(caught.value) for word in ["config.json", "float32", *words]), caught.value


Q_PROJ = "model.layers.0.self_attn.q_proj."


@pytest.mark.parametrize(
    ("case", "tensor", "change", "words"),
    [
        ("gptq", "qweight", None, ["[8, 64] of I32 is missing"]),
        ("gptq", "scales", torch.zeros(2, 63), ["expected [2, 64] of F32", "got [2, 63] of F32"]),
        ("gptq ordered by activations", "g_idx", None, ["of I32, I64 is missing"]),
        ("awq", "qzeros", torch.zeros(2, 8), ["expected [2, 8] of I32", "got [2, 8] of F32"]),
        ("fp8 per tensor", "weight_scale", torch.zeros(2), ["expected [1] or [] or [1, 1] of F32"]),
        ("fp8 in blocks", "weight", torch.zeros(64, 64), ["[64, 64] of F8_E4M3", "of F32"]),
        ("fp8 in blocks", "weight_scale", torch.zeros(1), ["is not part of this"]),
        ("compressed-tensors 4 bits", "weight_zero_point", torch.zeros(1), ["is not part of this"]),
    ],
)
def test_a_wrong_tensor_is_named_with_its_expected_shape_and_dtype(
    tmp_path: Path, case: str, tensor: str, change: torch.Tensor | None, words: list[str]
) -> None:
    write_quantized(CASES[case], tmp_path)
    change_tensor(tmp_path, Q_PROJ + tensor, change)
    message = refusal(tmp_path)
    assert all(word in message for word in [Q_PROJ + tensor, *words]), message


def test_a_bias_that_the_architecture_lacks_must_be_zero(tmp_path: Path) -> None:
    write_quantized(CASES["gptq with zero biases"], tmp_path)
    change_tensor(tmp_path, Q_PROJ + "bias", torch.ones(64))
    assert f"model.safetensors: tensor {Q_PROJ}bias has values other than 0" in refusal(tmp_path)


def test_a_group_index_beyond_the_groups_is_refused(tmp_path: Path) -> None:
    for case, tensor in (
        ("gptq ordered by activations", "g_idx"),
        ("compressed-tensors 4 bits, ordered by activations", "weight_g_idx"),
    ):
        write_quantized(CASES[case], tmp_path)
        change_tensor(tmp_path, Q_PROJ + tensor, torch.full((64,), -1, dtype=torch.int32))
        message = (
            f"model.safetensors: tensor {Q_PROJ}{tensor} has values from -1 to -1, but groups are 0 to 1."
        )
        assert message in refusal(tmp_path)


def test_a_stated_shape_that_contradicts_the_weight_is_refused(tmp_path: Path) -> None:
    write_quantized(CASES["compressed-tensors 4 bits"], tmp_path)
    change_tensor(tmp_path, Q_PROJ + "weight_shape", torch.tensor([64, 60]))
    message = f"model.safetensors: tensor {Q_PROJ}weight_shape has the values [64, 60], but"
    assert message in refusal(tmp_path)


def test_quantized_tensors_without_a_config_are_refused(tmp_path: Path) -> None:
    write_quantized(CASES["gptq"], tmp_path)
    edit_config(tmp_path, quantization_config=None)
    assert "q_proj.weight [64, 64] of F32, F16, BF16 is missing" in refusal(tmp_path)


def test_a_config_without_quantized_tensors_is_refused(tmp_path: Path) -> None:
    save_model(random_model("llama", num_hidden_layers=1), tmp_path)
    edit_config(tmp_path, quantization_config=GPTQ)
    assert "q_proj.qweight [8, 64] of I32 is missing" in refusal(tmp_path)
