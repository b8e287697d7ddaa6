"""GGUF files computed by transformers and by our own code: configs, names, offsets and orders of rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from arbora.frontend.model_files.gguf.config import model_config
from arbora.kernels.experts import Experts
from arbora.runtime.config import ModelImpl
from arbora.runtime.families import is_known
from arbora.runtime.gguf_families import GgufFamily, find_family
from arbora.runtime.gguf_file import GgufFile
from arbora.runtime.model.transformers_models.model import TransformersModel
from gguf import GGMLQuantizationType as Type
from gguf_models import finish_file
from paged_rows import PagedRows
from step_driver import StepDriver
from tiny_models import VOCABULARY, tiny_config, tiny_model
from transformers import AutoConfig, PreTrainedModel

ARCHITECTURES = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
PROMPT = torch.randint(3, VOCABULARY, (40,), generator=torch.Generator().manual_seed(5)).tolist()
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 8}
CASES: dict[str, dict[str, Any]] = {
    "gemma": {},
    "gemma2": {**GEMMA, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0},
    "gemma3": {
        **GEMMA,
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "granite": {
        "attention_multiplier": 0.3,
        "embedding_multiplier": 2.0,
        "residual_multiplier": 0.7,
        "logits_scaling": 3.0,
    },
    "olmo2": {},
    "phi3": {"sliding_window": 8},
    "gpt-oss": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "truncate": False,
        },
    },
    "llama": {},
    "olmo3": {"sliding_window": 8, "layer_types": ["sliding_attention"] * 3 + ["full_attention"]},
    "olmoe": {"clip_qkv": 2.0},
    "qwen3moe": {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []},
    "smollm3": {"no_rope_layers": [1, 1, 1, 0]},
}
KEYS = {
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
    "attention.clamp_kqv": "clip_qkv",
}
"""llama.cpp's keys of the fields that not all families have"""


WITH_EXPERTS = ("gpt-oss", "llama", "olmoe", "qwen3moe")
MODEL_TYPES = {"olmo3": "olmo3"}
STORED_AS = {"olmo3": "olmo2"}


def family_of(architecture: str) -> GgufFamily:
    family = find_family(STORED_AS.get(architecture, architecture), architecture in WITH_EXPERTS)
    assert family is not None
    return family


def random_model(architecture: str, fields: dict[str, Any]) -> PreTrainedModel:
    config = tiny_config(MODEL_TYPES.get(architecture) or family_of(architecture).model_type)
    return tiny_model(AutoConfig.for_model(**{**config.to_dict(), "max_position_embeddings": 256, **fields}))


def write(path: Path, architecture: str, model: PreTrainedModel, of_experts: Type = Type.F32) -> None:
    """Writes a file as llama.cpp's converter does; its library names the tensors. of_experts: the type of the
    experts' weights"""
    config, family = model.config, family_of(architecture)
    architecture = STORED_AS.get(architecture, architecture)
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    of_full = rope.get("full_attention", rope)
    writer.add_rope_freq_base(of_full["rope_theta"])
    if of_full["rope_type"] != "default":
        writer.add_rope_scaling_type(gguf.RopeScalingType(of_full["rope_type"]))
        writer.add_rope_scaling_factor(of_full["factor"])
    if of_full["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(of_full["original_max_position_embeddings"])
    writer.add_key_length(head_dim)
    writer.add_rope_dimension_count(round(head_dim * rope.get("partial_rotary_factor", 1.0)))
    for key, field in KEYS.items():
        value = getattr(config, field, None)
        if value is not None:
            add = writer.add_uint32 if isinstance(value, int) else writer.add_float32
            add(f"{architecture}.{key}", value)
    if experts := getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(
            getattr(config, "moe_intermediate_size", config.intermediate_size)
        )
    names = gguf.get_tensor_name_map(ARCHITECTURES[architecture], config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor
        layer, _, matrix = name.removeprefix("model.layers.").partition(".mlp.experts.")
        if config.model_type == "gpt_oss" and matrix in ("gate_up_proj", "down_proj"):
            values = values.transpose(1, 2)
        if matrix.startswith("gate_up_proj"):  # the file has the two parts, the model their stack
            halves = values.chunk(2, dim=1)
            if config.model_type == "gpt_oss":
                halves = values[:, ::2], values[:, 1::2]
            for part, half in zip(("gate", "up"), halves, strict=True):
                kind = Type.F32 if matrix.endswith("bias") else of_experts
                stored = f"blk.{layer}.ffn_{part}_exps.{'bias' if matrix.endswith('bias') else 'weight'}"
                add_as(writer, stored, half, kind)
            continue
        if family.are_pairs_neighbours and name.endswith(("q_proj.weight", "k_proj.weight")):
            count = heads if "q_proj" in name else kv_heads
            values = values.view(count, 2, -1, values.shape[1]).transpose(1, 2).reshape(values.shape)
        if name.endswith("norm.weight"):
            values = values + family.norm_offset
        name = name.replace("_proj_bias", "_proj.bias").replace(
            "experts.down_proj", "experts.down_proj.weight"
        )
        name = name.replace("weight.bias", "bias").replace(".mlp.experts.down_proj", ".ffn_down_exps")
        if ".ffn_down_exps" in name:
            stored = f"blk.{layer}.ffn_down_exps.{name.rpartition('.')[2]}"
        else:
            found = names.get_name(name, try_suffixes=(".weight", ".bias"))
            assert found is not None, name
            stored = found if found.endswith((".weight", ".bias")) else f"{found}.weight"
        add_as(writer, stored, values, of_experts if "_exps.weight" in stored else Type.F32)
    finish_file(writer)


def add_as(writer: gguf.GGUFWriter, name: str, values: torch.Tensor, kind: Type) -> None:
    writer.add_tensor(name, gguf.quantize(values.contiguous().numpy(), kind), raw_dtype=kind)


def make_model(
    directory: Path, architecture: str, model: PreTrainedModel, of_experts: Type = Type.F32
) -> Path:
    file = directory / "model.gguf"
    write(file, architecture, model, of_experts)
    (directory / "config.json").write_text(json.dumps(model_config(GgufFile(file))))
    return directory


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


def test_experts_stay_quantized(tmp_path: Path) -> None:
    """Each expert's product has the bits of its part of the stacked tensor."""
    original = random_model("qwen3moe", CASES["qwen3moe"])
    directory = make_model(tmp_path, "qwen3moe", original, Type.Q8_0)
    loaded = StepDriver.load(directory, model_impl="transformers").runner._model
    assert isinstance(loaded, TransformersModel)
    experts = loaded._model.base.get_submodule("layers.1.mlp.experts")
    products: Any = experts.expert_products
    assert isinstance(products, Experts)
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    weights = original.get_parameter("model.layers.1.mlp.experts.gate_up_proj")
    first: Any = products.first
    for expert, product in enumerate(first):
        exact = x @ weights[expert].T
        error = float((product(x) - exact).norm() / exact.norm())
        assert 0 < error < 0.02


def test_the_families_of_our_own_code_can_be_computed_by_transformers_too(tmp_path: Path) -> None:
    original = random_model("qwen3", {"layer_types": ["full_attention"] * 4, "use_sliding_window": False})
    directory = make_model(tmp_path, "qwen3", original)
    found = [
        PagedRows(StepDriver.load(directory, model_impl=impl).runner._model).run((0, PROMPT))[0]
        for impl in ("native", "transformers")
    ]
    assert float((found[0] - found[1]).abs().max() / found[0].abs().max()) < 1e-4
