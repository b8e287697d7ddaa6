"""GGUF files computed by transformers and by our own code: configs, names, offsets and orders of rows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from arbora.frontend.model_files.gguf.config import model_config
from arbora.kernels.experts import Experts
from arbora.runtime.config import ModelImpl
from arbora.runtime.errors import ConfigError
from arbora.runtime.families import is_known
from arbora.runtime.gguf_file import GgufFile
from arbora.runtime.model.transformers_models.model import TransformersModel
from arbora.runtime.model.weight_formats.gguf_tensors import GgufTensors
from checkpoints import edit_config
from converted_gguf import CASES, ends, make_model, random_model
from gguf import GGMLQuantizationType as Type
from paged_rows import PagedRows
from step_driver import StepDriver, refusal
from tiny_models import VOCABULARY

PROMPT = torch.randint(3, VOCABULARY, (40,), generator=torch.Generator().manual_seed(5)).tolist()


@pytest.mark.parametrize("architecture", CASES)
def test_a_file_gives_the_logits_of_the_original(architecture: str, tmp_path: Path) -> None:
    original = random_model(architecture, CASES[architecture])
    directory = make_model(tmp_path, architecture, original)
    with torch.no_grad():
        expected = original(input_ids=torch.tensor([PROMPT]), use_cache=False).logits[0]
    ways: list[ModelImpl] = ["native"] if is_known(directory) else []
    if architecture != "gpt-oss":  # transformers' class has no names for each expert
        ways.append("transformers")
    for way in ways:
        rows = PagedRows(StepDriver.load(directory, model_impl=way).runner._model)
        found = torch.cat([rows.run((0, PROMPT[:25]))[0], rows.run((0, PROMPT[25:]))[0]])
        assert float((found - expected).abs().max() / expected.abs().max()) < 1e-4, way


@pytest.mark.parametrize("architecture", ["llama4", "qwen3moe"])
@pytest.mark.parametrize(("kind", "error_limit"), [(Type.Q8_0, 0.02), (Type.Q4_0, 0.15)])
def test_experts_stay_quantized(architecture: str, kind: Type, error_limit: float, tmp_path: Path) -> None:
    """Each expert's product has the bits of its part of the stacked tensor."""
    original = random_model(architecture, CASES[architecture])
    directory = make_model(tmp_path, architecture, original, ends("_exps.weight", kind=kind))
    loaded = StepDriver.load(directory, model_impl="transformers").runner._model
    assert isinstance(loaded, TransformersModel)
    part = "feed_forward" if architecture == "llama4" else "mlp"
    experts = loaded._model.base.get_submodule(f"layers.1.{part}.experts")
    products: Any = experts.expert_products
    assert isinstance(products, Experts)
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    weights = original.get_parameter(f"model.layers.1.{part}.experts.gate_up_proj")
    if architecture == "llama4":
        weights = weights.transpose(1, 2)
    first: Any = products.first
    for expert, product in enumerate(first):
        exact = x @ weights[expert].detach().T
        error = float((product(x) - exact).norm() / exact.norm())
        assert error_limit / 20 < error < error_limit


HEADS = {"linear_num_value_heads": 6, "linear_value_head_dim": 32}
QUANTIZED = {"in_proj_qkv": "attn_qkv", "in_proj_z": "attn_gate", "out_proj": "ssm_out"}


def test_linear_attention_stays_quantized(tmp_path: Path) -> None:
    """Its products have the bits of the file, with value heads in transformers' order."""
    original = random_model("qwen35", HEADS)
    make_model(tmp_path, "qwen35", original, ends(*(f"{each}.weight" for each in QUANTIZED.values())))
    loaded = StepDriver.load(tmp_path).runner._model
    assert isinstance(loaded, TransformersModel)
    for name in QUANTIZED:
        weight = original.get_parameter(f"model.layers.0.linear_attn.{name}.weight")
        x = torch.randn(5, weight.shape[1], generator=torch.Generator().manual_seed(0))
        exact = x @ weight.T
        product = loaded._model.base.get_submodule(f"layers.0.linear_attn.{name}")
        assert 0 < float((product(x) - exact).norm() / exact.norm()) < 0.02, name


@pytest.mark.parametrize("is_old", [False, True])
def test_matrices_that_one_tensor_has_stay_quantized(tmp_path: Path, is_old: bool) -> None:
    """Old files have q, k, v and z of Qwen3-Next in one tensor, key head by key head."""
    original = random_model("qwen3next", CASES["qwen3next"])
    config: Any = original.config
    config.has_old_file = is_old
    quantized = ends("attn_qkv.weight", "attn_gate.weight", "ssm_in.weight", "ssm_ba.weight")
    file = make_model(tmp_path, "qwen3next", original, quantized) / "model.gguf"
    assert ("blk.0.ssm_in.weight" in GgufFile(file).tensors) == is_old
    loaded = StepDriver.load(tmp_path).runner._model
    assert isinstance(loaded, TransformersModel)
    inner, theirs = loaded._model.base, original.get_submodule("model.layers.0.linear_attn")
    x = torch.randn(1, 5, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        joined = (theirs.in_proj_qkvz(x), theirs.in_proj_ba(x))
        q, k, v, z, b, a = theirs.fix_query_key_value_ordering(*joined)
    qkv = torch.cat([each.flatten(2) for each in (q, k, v)], dim=2)
    for name, exact in {
        "in_proj_qkv": qkv,
        "in_proj_z": z.flatten(2),
        "in_proj_b": b,
        "in_proj_a": a,
    }.items():
        found = inner.get_submodule(f"layers.0.linear_attn.{name}")(x)
        assert 0 < float((found - exact).norm() / exact.norm()) < 0.02, name


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ssm.time_step_rank": 5}, "time_step_rank should be a multiple of the 2 key heads.*found 5"),
        ({"ssm.time_step_rank": 8}, r"tensor blk.0.ssm_ba.weight has the shape \[12, 64\]; expected 16 rows"),
        ({"ssm.state_size": 0}, "ssm.state_size should be a positive number, found 0"),
    ],
)
def test_wrong_numbers_of_heads_in_joined_tensors_are_refused(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    make_model(tmp_path, "qwen3next", random_model("qwen3next", CASES["qwen3next"]))
    file = GgufFile(tmp_path / "model.gguf")
    metadata = file.metadata | {f"qwen3next.{key}": value for key, value in change.items()}
    with pytest.raises(ConfigError, match=words):
        GgufTensors(file, metadata)


def test_a_llama4_without_chunks_is_refused(tmp_path: Path) -> None:
    make_model(tmp_path, "llama4", random_model("llama4", CASES["llama4"]))
    file = GgufFile(tmp_path / "model.gguf")
    file.metadata["llama4.attention.sliding_window"] = 0
    with pytest.raises(ConfigError, match="sliding_window should be missing or above 0"):
        model_config(file)


def test_quantized_heads_of_less_than_a_group_are_refused(tmp_path: Path) -> None:
    make_model(tmp_path, "qwen35", random_model("qwen35", {}), ends("ssm_out.weight"))
    words = "blk.0.ssm_out.weight has heads of 16 inputs, no multiple of the 32 of a group"
    assert words in refusal(tmp_path)


@pytest.mark.parametrize(
    ("architecture", "change", "words"),
    [
        ("lfm2", {"conv_L_cache": 4}, "blk.0.shortconv.conv.weight: expected [64, 1, 4] of"),
        ("qwen35", {"linear_num_value_heads": 8}, "blk.0.ssm_a: expected [8] of"),
    ],
)
def test_a_wrong_tensor_of_a_recurrent_layer_is_named(
    tmp_path: Path, architecture: str, change: dict[str, Any], words: str
) -> None:
    edit_config(make_model(tmp_path, architecture, random_model(architecture, {})), **change)
    assert f"{tmp_path}/model.gguf: tensor {words}" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("qwen35", "blk.0.ssm_a"),
        ("qwen35", "blk.0.ssm_dt.bias"),
        ("qwen35", "blk.0.ssm_conv1d.weight"),
        ("qwen3next", "blk.0.ssm_ba.weight"),
    ],
)
def test_a_missing_tensor_of_a_recurrent_layer_is_named(tmp_path: Path, architecture: str, name: str) -> None:
    file = make_model(tmp_path, architecture, random_model(architecture, {})) / "model.gguf"
    whole_name = re.compile(re.escape(name.encode()) + rb"(?![a-z])")  # ssm_a, and not ssm_alpha
    file.write_bytes(whole_name.sub(name.encode().replace(b"ssm", b"xxx"), file.read_bytes()))
    assert re.search(rf"tensor {re.escape(name)} \[.* is missing", refusal(tmp_path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"lfm2.attention.head_count_kv": [0, 2, 0]},
            "head_count_kv should have a value of the type int for each",
        ),
        ({"lfm2.attention.head_count_kv": [0, 2, 4, 2]}, "head_count_kv should be the same for all layers"),
        ({"lfm2.nextn_predict_layers": 4}, "block_count should be .* above 4 layers.* found 4"),
    ],
)
def test_wrong_metadata_of_layers_are_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    make_model(tmp_path, "lfm2", random_model("lfm2", {}))
    file = GgufFile(tmp_path / "model.gguf")
    file.metadata |= change
    with pytest.raises(ConfigError, match=words):
        model_config(file)


def test_the_families_of_our_own_code_can_be_computed_by_transformers_too(tmp_path: Path) -> None:
    original = random_model("qwen3", {"layer_types": ["full_attention"] * 4, "use_sliding_window": False})
    directory = make_model(tmp_path, "qwen3", original)
    found = [
        PagedRows(StepDriver.load(directory, model_impl=impl).runner._model).run((0, PROMPT))[0]
        for impl in ("native", "transformers")
    ]
    assert float((found[0] - found[1]).abs().max() / found[0].abs().max()) < 1e-4
