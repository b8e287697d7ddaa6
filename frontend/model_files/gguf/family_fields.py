"""The fields of config.json that only some families of GGUF files have.

Files lack some values: those are the constants of llama.cpp, which computes the models so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .metadata import Metadata

Fields = dict[str, Any]
GEMMA_ACTIVATION = "gelu_pytorch_tanh"
LOCAL_THETA = 10000.0
"""Gemma 3's base of rotation in layers with a window"""
GEMMA3_PERIOD, OLMO3_PERIOD, QWEN35_PERIOD = 6, 4, 4
"""Every sixth or fourth layer has full attention."""
SCALED_BY_WIDTH = {"gemma2": 46, "gemma3": 62}
"""The number of layers of the models, of 27 billion parameters, whose scores are scaled by
hidden_size / heads in place of head_dim."""
LLAMA4_PERIOD = 4
"""Every fourth layer of Llama 4 has full attention, without rotation."""
LLAMA4_EXPERTS = 128
"""the number of experts of the Llama 4 that does not normalize queries and keys"""
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"


def _gemma(metadata: Metadata, config: Mapping[str, Any]) -> Fields:
    return {"hidden_activation": GEMMA_ACTIVATION, "hidden_act": GEMMA_ACTIVATION}


def _scaled_gemma(metadata: Metadata, config: Mapping[str, Any]) -> Fields:
    by_width = config["num_hidden_layers"] == SCALED_BY_WIDTH[metadata.architecture]
    width = config["hidden_size"] // config["num_attention_heads"]
    return {
        **_gemma(metadata, config),
        "query_pre_attn_scalar": width if by_width else config["head_dim"],
        "sliding_window": metadata.require("attention.sliding_window", int),
    }


def _gemma2(metadata: Metadata, config: Mapping[str, Any]) -> Fields:
    return {
        **_scaled_gemma(metadata, config),
        "attn_logit_softcapping": metadata.find("attn_logit_softcapping", float),
        "final_logit_softcapping": metadata.find("final_logit_softcapping", float),
    }


def _gemma3(metadata: Metadata, config: Mapping[str, Any]) -> Fields:
    full, local = "full_attention", "sliding_attention"
    layers = range(1, config["num_hidden_layers"] + 1)
    theta = metadata.find("rope.freq_base_swa", float) or LOCAL_THETA
    return {
        **_scaled_gemma(metadata, config),
        "layer_types": [local if layer % GEMMA3_PERIOD else full for layer in layers],
        "rope_parameters": {
            full: config["rope_parameters"],
            local: {"rope_type": "default", "rope_theta": theta},
        },
    }


def _granite(metadata: Metadata, config: Mapping[str, Any]) -> Fields:
    named = {
        "attention_multiplier": "attention.scale",
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
    }
    return {field: metadata.require(key, float) for field, key in named.items()}


def _olmo2(metadata: Metadata, config: Mapping[str, Any]) -> Fields:
    """OLMo 3 is stored as an OLMo 2 with windows."""
    window = metadata.find("attention.sliding_window", int)
    if window is None:
        return {}
    full, local = "full_attention", "sliding_attention"
    layers, rope = config["num_hidden_layers"], config["rope_parameters"]
    has_window = metadata.find_list("attention.sliding_window_pattern", bool, layers)
    if has_window is None:
        has_window = [(layer + 1) % OLMO3_PERIOD for layer in range(layers)]
    return {
        "architectures": ["Olmo3ForCausalLM"],
        "model_type": "olmo3",
        "sliding_window": window,
        "layer_types": [local if each else full for each in has_window],
        "rope_parameters": {full: rope, local: {"rope_type": "default", "rope_theta": rope["rope_theta"]}},
    }


def _phi3(metadata: Metadata, config: Mapping[str, Any]) -> Fields:
    fields: Fields = {"sliding_window": metadata.find("attention.sliding_window", int)}
    if LONG_FACTORS not in metadata.file.tensors:
        return fields
    original = metadata.require("rope.scaling.original_context_length", int)
    rope = {
        "rope_type": "longrope",
        "rope_theta": config["rope_parameters"]["rope_theta"],
        "long_factor": metadata.file.floats(LONG_FACTORS),
        "short_factor": metadata.file.floats(SHORT_FACTORS),
        "partial_rotary_factor": config["partial_rotary_factor"],
    }
    return {**fields, "rope_parameters": rope, "original_max_position_embeddings": original}


def _experts(metadata: Metadata) -> Fields:
    return {
        "num_experts": metadata.require("expert_count", int),
        "num_experts_per_tok": metadata.require("expert_used_count", int),
    }


def _qwen3moe(metadata: Metadata, config: Mapping[str, Any]) -> Fields:
    return {
        **_experts(metadata),
        "moe_intermediate_size": metadata.require("expert_feed_forward_length", int),
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _llama4(metadata: Metadata, config: Mapping[str, Any]) -> Fields:
    window = "llama4.attention.sliding_window"
    if metadata.file.metadata.get(window) == 0:  # some converters write so that no layer has chunks
        raise metadata.wrong(window, "should be missing or above 0: only chunked attention is supported", 0)
    experts, step = _experts(metadata), metadata.find("interleave_moe_layer_step", int)
    layers = range(1, config["num_hidden_layers"] + 1)
    return {
        "num_local_experts": experts["num_experts"],
        "num_experts_per_tok": experts["num_experts_per_tok"],
        "intermediate_size": metadata.require("expert_feed_forward_length", int),
        "intermediate_size_mlp": config["intermediate_size"],
        "moe_layers": [layer - 1 for layer in layers if step and layer % step == 0],
        "no_rope_layers": [int(layer % LLAMA4_PERIOD != 0) for layer in layers],  # 0: without rotation
        "attention_chunk_size": 8192,
        "use_qk_norm": experts["num_experts"] != LLAMA4_EXPERTS,
        "attn_temperature_tuning": True,
        "floor_scale": 8192,
        "attn_scale": 0.1,
    }


def _olmoe(metadata: Metadata, config: Mapping[str, Any]) -> Fields:
    clip = metadata.find("attention.clamp_kqv", float)
    return {**_experts(metadata), "norm_topk_prob": False, "clip_qkv": clip}


def _mixtral(metadata: Metadata, config: Mapping[str, Any]) -> Fields:
    experts = _experts(metadata)
    return {
        "num_local_experts": experts.pop("num_experts"),
        **experts,
        "sliding_window": metadata.find("attention.sliding_window", int),
    }


def _lfm2(metadata: Metadata, config: Mapping[str, Any]) -> Fields:
    kv_heads = metadata.find_list("attention.head_count_kv", int, config["num_hidden_layers"])
    return {
        "norm_eps": config["rms_norm_eps"],
        "conv_L_cache": metadata.require("shortconv.l_cache", int),
        "block_auto_adjust_ff_dim": False,
        "layer_types": kv_heads and ["full_attention" if count else "conv" for count in kv_heads],
    }


def _lfm2moe(metadata: Metadata, config: Mapping[str, Any]) -> Fields:
    return {
        **_lfm2(metadata, config),
        **_experts(metadata),
        "moe_intermediate_size": metadata.require("expert_feed_forward_length", int),
        "num_dense_layers": metadata.find("leading_dense_block_count", int) or 0,
    }


def _qwen35(metadata: Metadata, config: Mapping[str, Any]) -> Fields:
    layers, value_heads = config["num_hidden_layers"], metadata.require("ssm.time_step_rank", int)
    is_recurrent = metadata.find_list("attention.recurrent_layers", bool, layers)
    if is_recurrent is None:
        period = metadata.find("full_attention_interval", int) or QWEN35_PERIOD
        is_recurrent = [(layer + 1) % period for layer in range(layers)]
    return {
        "linear_conv_kernel_dim": metadata.require("ssm.conv_kernel", int),
        "linear_key_head_dim": metadata.require("ssm.state_size", int),
        "linear_num_key_heads": metadata.require("ssm.group_count", int),
        "linear_value_head_dim": metadata.require("ssm.inner_size", int) // value_heads,
        "linear_num_value_heads": value_heads,
        "layer_types": ["linear_attention" if each else "full_attention" for each in is_recurrent],
    }


def _qwen35moe(metadata: Metadata, config: Mapping[str, Any]) -> Fields:
    return {
        **_qwen35(metadata, config),
        **_experts(metadata),
        "moe_intermediate_size": metadata.require("expert_feed_forward_length", int),
        "shared_expert_intermediate_size": metadata.require("expert_shared_feed_forward_length", int),
    }


def _gpt_oss(metadata: Metadata, config: Mapping[str, Any]) -> Fields:
    experts, rope = _experts(metadata), config["rope_parameters"]
    layers = range(config["num_hidden_layers"])
    return {
        "num_local_experts": experts.pop("num_experts"),
        **experts,
        "intermediate_size": metadata.require("expert_feed_forward_length", int),
        "sliding_window": metadata.require("attention.sliding_window", int),
        "layer_types": ["full_attention" if layer % 2 else "sliding_attention" for layer in layers],
        "rope_parameters": {**rope, "truncate": False} if rope["rope_type"] == "yarn" else rope,
    }


OfFamily = Callable[[Metadata, Mapping[str, Any]], Fields]
FAMILIES: Mapping[str, OfFamily] = {
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "granite": _granite,
    "lfm2": _lfm2,
    "olmo2": _olmo2,
    "phi3": _phi3,
    "qwen35": _qwen35,
}
EXPERT_FAMILIES: Mapping[str, OfFamily] = {
    "gpt-oss": _gpt_oss,
    "lfm2moe": _lfm2moe,
    "llama": _mixtral,
    "llama4": _llama4,
    "olmoe": _olmoe,
    "qwen35moe": _qwen35moe,
    "qwen3moe": _qwen3moe,
    "qwen3next": _qwen35moe,
}
"""of files with experts"""
