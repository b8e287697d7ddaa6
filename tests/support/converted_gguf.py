"""GGUF files of tiny random models of transformers' families, written as llama.cpp's converter does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import torch
from arbora.frontend.model_files.gguf.config import model_config
from arbora.runtime.gguf_families import GgufFamily, find_family
from arbora.runtime.gguf_file import GgufFile
from gguf import GGMLQuantizationType as Type
from gguf_models import TypeOf, finish_file, one_type
from tiny_models import tiny_config, tiny_model
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

ARCHITECTURES = {name: number for number, name in gguf.MODEL_ARCH_NAMES.items()}
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
    "lfm2": {"block_auto_adjust_ff_dim": False},
    "lfm2moe": {},
    "llama": {},
    "llama4": {
        "interleave_moe_layer_step": 2,
        **dict.fromkeys(("layer_types", "moe_layers", "no_rope_layers")),
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 16.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
        },
        "attention_chunk_size": 8192,
        "floor_scale": 8192,
    },
    "olmo3": {
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 8.0,
                "original_max_position_embeddings": 32,
                "attention_factor": 1.5,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    },
    "olmoe": {"clip_qkv": 2.0},
    "qwen35": {"linear_num_value_heads": 6},
    "qwen35moe": {},
    "qwen3next": {"linear_num_value_heads": 6, "linear_value_head_dim": 32},
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


WITH_EXPERTS = ("gpt-oss", "lfm2moe", "llama", "llama4", "olmoe", "qwen35moe", "qwen3moe", "qwen3next")
MODEL_TYPES = {"olmo3": "olmo3", "qwen3next": "qwen3_next"}
STORED_AS = {"olmo3": "olmo2"}
ALL_FLOATS = one_type(Type.F32)


def family_of(architecture: str) -> GgufFamily:
    family = find_family(STORED_AS.get(architecture, architecture), architecture in WITH_EXPERTS)
    assert family is not None
    return family


def random_model(architecture: str, fields: dict[str, Any]) -> PreTrainedModel:
    config = tiny_config(MODEL_TYPES.get(architecture) or family_of(architecture).model_type)
    return tiny_model(AutoConfig.for_model(**{**config.to_dict(), "max_position_embeddings": 256, **fields}))


def write(path: Path, architecture: str, model: PreTrainedModel, type_of: TypeOf) -> None:
    """Writes a file as llama.cpp's converter does; its library names the tensors."""
    config, family = model.config, family_of(architecture)
    architecture = STORED_AS.get(architecture, architecture)
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    width: int = getattr(config, "intermediate_size_mlp", 0) or getattr(config, "intermediate_size", 0)
    if width:
        writer.add_feed_forward_length(width)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(getattr(config, "norm_eps", None) or config.rms_norm_eps)
    if config.model_type.startswith("lfm2"):
        add_short_convolutions(writer, config)
    if config.model_type.startswith(("qwen3_5", "qwen3_next")):
        add_linear_attention(writer, config)
    rope = config.rope_parameters
    of_full = rope.get("full_attention", rope)
    writer.add_rope_freq_base(of_full["rope_theta"])
    if of_full["rope_type"] == "llama3":
        add_stretched_frequencies(writer, head_dim, of_full)
    elif of_full["rope_type"] != "default":
        writer.add_rope_scaling_type(gguf.RopeScalingType(of_full["rope_type"]))
        writer.add_rope_scaling_factor(of_full["factor"])
    if of_full["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(of_full["original_max_position_embeddings"])
        if factor := of_full.get("attention_factor"):
            writer.add_rope_scaling_yarn_attn_factor(factor)
    if config.model_type == "olmo3":
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
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
        inner = getattr(config, "moe_intermediate_size", None) or config.intermediate_size
        writer.add_expert_feed_forward_length(inner)
    if step := getattr(config, "interleave_moe_layer_step", None):
        writer.add_interleave_moe_layer_step(step)
    names = gguf.get_tensor_name_map(ARCHITECTURES[architecture], config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if name.endswith("in_proj_qkvz.weight") and not getattr(config, "has_old_file", False):
            for part, rows in divide_key_heads(tensor, config).items():
                add_as(writer, f"blk.{name.split('.')[2]}.{part}.weight", rows, type_of)
            continue
        values, name = tensor, name.replace(".feed_forward.experts.", ".mlp.experts.")
        layer, _, matrix = name.removeprefix("model.layers.").partition(".mlp.experts.")
        if config.model_type in ("gpt_oss", "llama4_text") and matrix in ("gate_up_proj", "down_proj"):
            values = values.transpose(1, 2)
        if matrix.startswith("gate_up_proj"):  # the file has the two parts, the model their stack
            halves = values.chunk(2, dim=1)
            if config.model_type == "gpt_oss":
                halves = values[:, ::2], values[:, 1::2]
            for part, half in zip(("gate", "up"), halves, strict=True):
                stored = f"blk.{layer}.ffn_{part}_exps.{'bias' if matrix.endswith('bias') else 'weight'}"
                add_as(writer, stored, half, type_of)
            continue
        if family.are_pairs_neighbours and name.endswith(("q_proj.weight", "k_proj.weight")):
            count = heads if "q_proj" in name else kv_heads
            values = values.view(count, 2, -1, values.shape[1]).transpose(1, 2).reshape(values.shape)
        if name.endswith("norm.weight") and "linear_attn" not in name:
            values = values + family.norm_offset
        if ".linear_attn." in name and family.are_value_heads_tiled:
            values = tile_value_heads(name, values, config)
        if ".conv" in name and values.ndim == 3:
            values = values.squeeze(1)
        if name.endswith("A_log"):
            values = -values.exp()
        name = name.replace("dt_bias", "dt_proj.bias").replace("expert_bias", "expert_bias.bias")
        name = name.replace("_proj_bias", "_proj.bias").replace(
            "experts.down_proj", "experts.down_proj.weight"
        )
        name = name.replace("weight.bias", "bias").replace(".mlp.experts.down_proj", ".ffn_down_exps")
        if ".ffn_down_exps" in name:
            stored = f"blk.{layer}.ffn_down_exps.{name.rpartition('.')[2]}"
        else:
            found = names.get_name(name, try_suffixes=(".weight", ".bias"))
            assert found is not None, name
            stored = found if found.endswith((".weight", ".bias", ".ssm_a")) else f"{found}.weight"
        add_as(writer, stored, values, type_of)
    finish_file(writer)


def add_short_convolutions(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """LFM2's keys. Layers without attention have no KV heads."""
    kinds = config.layer_types
    writer.add_head_count_kv([0 if kind == "conv" else config.num_key_value_heads for kind in kinds])
    writer.add_shortconv_l_cache(config.conv_L_cache)
    if hasattr(config, "num_dense_layers"):
        writer.add_leading_dense_block_count(config.num_dense_layers)


def add_stretched_frequencies(writer: gguf.GGUFWriter, head_dim: int, rope: dict[str, Any]) -> None:
    """Llama 4's file has what its config does to frequencies. There is nothing between the two factors."""
    lengths = 2 * torch.pi * rope["rope_theta"] ** (torch.arange(0, head_dim, 2) / head_dim)
    is_long = lengths > rope["original_max_position_embeddings"]
    assert 0 < is_long.sum() < len(lengths)
    add_as(writer, "rope_freqs.weight", torch.where(is_long, rope["factor"], 1.0), ALL_FLOATS)


def divide_key_heads(joined: torch.Tensor, config: PreTrainedConfig) -> dict[str, torch.Tensor]:
    """The matrices of Qwen3-Next's files that its checkpoints have key head by key head."""
    key_heads, key = config.linear_num_key_heads, config.linear_key_head_dim
    value = config.linear_num_value_heads // key_heads * config.linear_value_head_dim
    parts = joined.unflatten(0, (key_heads, -1)).split((key, key, value, value), dim=1)
    q, k, v, z = (part.flatten(0, 1) for part in parts)
    return {"attn_qkv": torch.cat((q, k, v)), "attn_gate": z}


def add_linear_attention(writer: gguf.GGUFWriter, config: PreTrainedConfig) -> None:
    """The keys of Qwen3.5 and Qwen3-Next, and a layer that predicts later tokens."""
    writer.add_block_count(config.num_hidden_layers + 1)
    writer.add_nextn_predict_layers(1)
    add_as(writer, f"blk.{config.num_hidden_layers}.nextn.enorm.weight", torch.ones(4), ALL_FLOATS)
    is_recurrent = [kind == "linear_attention" for kind in config.layer_types]
    writer.add_array(f"{writer.arch}.attention.recurrent_layers", [*is_recurrent, False])
    writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
    writer.add_ssm_state_size(config.linear_key_head_dim)
    writer.add_ssm_group_count(config.linear_num_key_heads)
    writer.add_ssm_time_step_rank(config.linear_num_value_heads)
    writer.add_ssm_inner_size(config.linear_num_value_heads * config.linear_value_head_dim)
    if hasattr(config, "shared_expert_intermediate_size"):
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)


def tile_value_heads(name: str, values: torch.Tensor, config: PreTrainedConfig) -> torch.Tensor:
    """Puts the first value head of each key head first, then the second of each, as a GGUF file does."""
    if "linear_attn.norm" in name:
        return values
    if "out_proj" in name:
        return tile_value_heads("in_proj_z", values.T, config).T
    key_heads, begin = config.linear_num_key_heads, 0
    if "qkv" in name or "conv1d" in name:
        begin = 2 * key_heads * config.linear_key_head_dim
    heads = values[begin:].unflatten(0, (key_heads, config.linear_num_value_heads // key_heads, -1))
    return torch.cat((values[:begin], heads.transpose(0, 1).flatten(0, 2)))


def add_as(writer: gguf.GGUFWriter, name: str, values: torch.Tensor, type_of: TypeOf) -> None:
    kind = type_of(name)
    writer.add_tensor(name, gguf.quantize(values.contiguous().numpy(), kind), raw_dtype=kind)


def ends(*names: str, kind: Type = Type.Q8_0) -> TypeOf:
    """The type for tensors with these ends of names."""
    return lambda name: kind if name.endswith(names) else Type.F32


def make_model(
    directory: Path, architecture: str, model: PreTrainedModel, type_of: TypeOf = ALL_FLOATS
) -> Path:
    file = directory / "model.gguf"
    write(file, architecture, model, type_of)
    (directory / "config.json").write_text(json.dumps(model_config(GgufFile(file))))
    return directory
