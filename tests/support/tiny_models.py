"""Tiny random models of the causal language model types of transformers."""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

TYPES = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
VOCABULARY = 128
LAYERS = 4
HEADS = 4

# The first pattern that matches a whole name gives the value of an integer field; other fields keep theirs.
_SIZES = tuple(
    (re.compile(pattern), size)
    for pattern, size in {
        r"(num_hidden|n|num|decoder|num_decoder)_layers?": LAYERS,
        r"(num_)?encoder_layers|linear_num_key_heads|index_n_heads|mamba_expand|o_groups": 2,
        r"mamba_(n|num)_heads": 8,
        r"(num_attention|(decoder|encoder)_attention|aux_num_attention|n|num|linear_num_value)_heads?": HEADS,
        r"hidden_size|n_embd|d_model|dim|model_dim|embedding_(size|dim)|emb_dim|word_embed_proj_dim": 64,
        r"lru_width|attention_hidden_size|conv_dim(_out)?|block_dim": 64,
        r"(moe_|shared_|moe_shared_|shared_expert_|expert_)(expert_)?intermediate_size": 32,
        r"expert_ffn_hidden_size": 32,
        r"intermediate_size(_mlp)?|n_inner|d_?ff|dim_ff|block_ff_dim|feed_forward_size": 96,
        r"((decoder|encoder)_)?ffn_(dim|hidden_size)": 96,
        r"vocab_size(_per_layer_input)?": VOCABULARY,
        r"((attention|global|swa|mamba|index|linear_key|linear_value|v|qk_nope)_)?head_dim|d_kv": 16,
        r"mamba_(d_head|d_state|headdim|state_dim)|(ssm_)?state_size|(kv|o)_lora_rank|index_topk": 16,
        r"qk_rope_head_dim|rotary_dim|hidden_size_per_layer_input|laurel_rank": 8,
        r"qk_head_dim|q_lora_rank": 24,
        r"(num|n|moe_num|ffn_num|num_local|num_routed|n_routed|moe_num)_(local_|routed_)?experts": 4,
        r"num_(experts_per_tok(en)?|selected_experts)|(moe_|ffn_)?top_k(_experts)?|moe_(topk|k)": 2,
        r"n_groups?|topk_groups?|num_expert_group|mamba_n_?groups|first_k_dense_replace": 1,
        r"num_dense_layers|(moe_)?(num|n)_shared_experts": 1,
        r"num_nextn_predict_layers|num_kv_shared_layers": 0,
        r"sliding_window(_size)?|attention_(chunk|window)_size|(mamba_)?chunk_size": 8,
        r"window_size|local_attention|swa_window": 8,
        r"mamba_dt_rank|time_step_rank": 4,
        r"n_positions|n_ctx|max_(position_embeddings|seq_len|sequence_length)": 256,
    }.items()
)
_KV_HEADS = re.compile(
    r"((swa_)?num|kv_n|n_kv|attention_kv)_(key_value_|kv_)?heads|num_global_key_value_heads"
    r"|multi_query_group_num|num_kv_groups"
)
_TOKEN = re.compile(r".*_token_(id|index)|image_token_index")
_ENCODER = {
    **dict.fromkeys(("hidden_size", "embed_dim", "d_model", "hidden_dim", "n_embd"), 32),
    **dict.fromkeys(("num_hidden_layers", "depth", "encoder_layers", "num_layers", "num_global_layers"), 2),
    **dict.fromkeys(
        ("num_attention_heads", "num_key_value_heads", "num_heads", "encoder_attention_heads"), 2
    ),
    **dict.fromkeys(("intermediate_size", "encoder_ffn_dim"), 48),
    "image_size": 28,
    "patch_size": 14,
    "out_hidden_size": 64,
    "num_blocks": 2,
}
_TEXT = ("text_config", "decoder", "llm_config", "language_config")
_ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 100.0}
_LATENT: dict[str, Any] = {"head_dim": 8, "num_key_value_heads": HEADS}
_WINDOWS: dict[str, Any] = {"layer_types": ["full_attention", "sliding_attention"] * 2, "sliding_window": 8}
_ZAMBA: dict[str, Any] = {
    "attention_hidden_size": 128,
    "attention_head_dim": 32,
    "layers_block_type": ["mamba", "hybrid"] * 2,
}
_MORE: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("axk1", "deepseek_v3", "glm4_moe_lite", "sarvam_mla", "youtu"), _LATENT),
    "bamba": {"attn_layer_indices": [1, 3]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "zamba": {**_ZAMBA, "n_mamba_heads": 2},
    "zamba2": {**_ZAMBA, "n_mamba_heads": 8, "mamba_headdim": 16, "num_key_value_heads": HEADS},
    "cohere_compass_text": {"rope_parameters": {"full_attention": _ROPE, "sliding_attention": _ROPE}},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 100.0, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "deepseek_v2": {**_LATENT, "topk_method": "greedy", "num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, **_WINDOWS},
    "falcon_h1": {"mamba_d_ssm": 128},
    "hunyuan_v1_dense": {"head_dim": 16, "rope_parameters": _ROPE},
    "hunyuan_v1_moe": {"head_dim": 16, "rope_parameters": _ROPE},
    "beam": {"rope_parameters": {"full_attention": _ROPE, "sliding_attention": _ROPE}},
    "longcat_flash": {**_LATENT, "zero_expert_num": 2},
    "kimi_linear": {"linear_head_dim": 16, "linear_num_heads": 2},
    "kolibri1_1": {"index_num_heads": 2},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "minicpm3": _LATENT,
    "mamba2": {"num_heads": 8, "head_dim": 16, "expand": 2},
    "ministral": {"head_dim": 16},
    "ministral3": {
        "head_dim": 16,
        "rope_parameters": {**_ROPE, "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 16},
    },
    "mistral": {"head_dim": 16},
    "mixtral": {"head_dim": 16},
    "nemotron": {"head_dim": 16, "num_key_value_heads": HEADS},
    "qwen2": {**_WINDOWS, "use_sliding_window": True},
    "qwen3": {**_WINDOWS, "use_sliding_window": True},
    "zaya": {"num_experts_per_tok": 1},
}
"""the fields of a type whose defaults do not go with the sizes above"""


def tiny_config(model_type: str) -> PreTrainedConfig:
    """A config with few small layers, of each kind that the type has."""
    more = _MORE.get(model_type, {})
    try:
        base = CONFIG_MAPPING[model_type]()
    except (TypeError, ValueError):  # some defaults are not valid together
        base = CONFIG_MAPPING[model_type](**more)
    fields = _shrink(base)
    for name, part in vars(base).items():
        if isinstance(part, PreTrainedConfig):
            is_text = name in _TEXT or name.startswith("text")
            small = _shrink(part) | _MORE.get(part.model_type, {}) if is_text else _shrink_encoder(part)
            fields[name] = type(part)(**small)
    return CONFIG_MAPPING[model_type](**(fields | more))


def _shrink(config: PreTrainedConfig) -> dict[str, Any]:
    fields = {name: value for name, value in vars(config).items() if not name.startswith("_")}
    layers = next(
        (fields[name] for name in fields if _SIZES[0][0].fullmatch(name) and isinstance(fields[name], int)), 0
    )
    heads = fields.get("num_attention_heads")
    return {
        name: small
        for name, value in fields.items()
        if (small := _small(name, value, layers, heads)) is not None
    }


def _shrink_encoder(config: PreTrainedConfig) -> dict[str, Any]:
    """Small sizes for an encoder of images or sound, which the tests do not run."""
    return {name: size for name, size in _ENCODER.items() if isinstance(getattr(config, name, None), int)}


def _small(name: str, value: Any, layers: int, heads: int | None) -> Any:
    """The value of a field in a tiny config; None: its default."""
    if isinstance(value, Mapping) and name in ("rope_parameters", "rope_scaling"):
        return _small_rope(value)
    if isinstance(value, list) and layers and len(value) == layers:
        kinds = list(dict.fromkeys(value))
        return [kinds[at % len(kinds)] for at in range(LAYERS)]
    if name == "pad_token_id":
        return None if value is None else 0
    if _TOKEN.fullmatch(name):
        return 1 if isinstance(value, int | list) else None
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    if _KV_HEADS.fullmatch(name):
        return HEADS if value == heads else min(value, 2)
    return next((size for pattern, size in _SIZES if pattern.fullmatch(name)), None)


def _small_rope(parameters: Mapping[str, Any]) -> dict[str, Any]:
    if any(isinstance(value, Mapping) for value in parameters.values()):
        return {name: value and _small_rope(value) for name, value in parameters.items()}
    small = dict(_ROPE)
    if (partial := parameters.get("partial_rotary_factor")) is not None:
        small["partial_rotary_factor"] = partial if partial in (0.25, 0.5, 1.0) else 0.5
    if parameters.get("rope_type") == "proportional":
        small |= {"rope_type": "proportional", "partial_rotary_factor": 0.5}
    return small


def tiny_model(config: PreTrainedConfig) -> PreTrainedModel:
    """A float32 model. Its random weights are so large that each token changes all later logits."""
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        copy.deepcopy(config), attn_implementation="eager", dtype=torch.float32
    )
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.is_floating_point():
                _randomise(name.lower(), parameter, torch.randn(parameter.shape, generator=generator))
    return model.eval()


def _randomise(name: str, parameter: torch.nn.Parameter, noise: torch.Tensor) -> None:
    if parameter.ndim >= 2:
        embeds = any(word in name for word in ("embed", "wte", "wpe"))
        inputs = parameter.shape[-1] if parameter.ndim == 2 else max(parameter.shape[-2:])
        parameter.copy_(noise * (0.5 if embeds else 1.5 / math.sqrt(inputs)))
    elif "sink" in name:
        parameter.copy_(noise)
    elif "norm" in name:
        parameter.add_(noise * 0.1)
    elif "bias" in name:
        parameter.copy_(noise * 0.1)
