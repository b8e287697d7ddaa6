"""The models of GGUF files by `general.architecture`, and how their tensors differ from Hugging Face's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

USUAL_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""Hugging Face's names of a layer's tensors, by GGUF's; without `.weight` and `.bias` if that is the same in
both"""
_NORMS_AFTER = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_NORMS_AROUND = {**USUAL_NAMES, **_NORMS_AFTER, "ffn_norm": "pre_feedforward_layernorm"}
EXPERT = "{expert}"
"""stands for an expert's number in the names of tensors that GGUF files store stacked"""


def _with_experts(router: str, experts: str, parts: Sequence[str]) -> dict[str, str]:
    """parts: the names of gate, up and down"""
    stacked = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
    return {
        **USUAL_NAMES,
        "ffn_gate_inp": router,
        **{ours: f"{experts}.{EXPERT}.{part}" for ours, part in zip(stacked, parts, strict=True)},
    }


_PARTS = ("gate_proj", "up_proj", "down_proj")
_QWEN_MOE = _with_experts("mlp.gate", "mlp.experts", _PARTS)
_LFM2 = {
    "attn_norm": "operator_norm",
    "attn_output": "self_attn.out_proj",
    "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm",
    "ffn_norm": "ffn_norm",
    "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3",
    "ffn_down": "feed_forward.w2",
    "shortconv.conv": "conv.conv",
    "shortconv.in_proj": "conv.in_proj",
    "shortconv.out_proj": "conv.out_proj",
}
_LINEAR_ATTENTION = {
    "post_attention_norm": "post_attention_layernorm",
    "attn_qkv": "linear_attn.in_proj_qkv",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_a": "linear_attn.A_log",
    "ssm_dt.bias": "linear_attn.dt_bias",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_norm": "linear_attn.norm",
    "ssm_out": "linear_attn.out_proj",
}
_JOINED_LINEAR_ATTENTION = {
    **{name: ours for name, ours in _LINEAR_ATTENTION.items() if name not in ("ssm_alpha", "ssm_beta")},
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_in": "linear_attn.in_proj_qkvz",  # old files have it in place of attn_qkv and attn_gate
}
"""those of Qwen3-Next, where some tensors have the rows of two matrices"""
_SHARED_EXPERT = {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
_LLAMA4 = {
    **_with_experts("feed_forward.router", "feed_forward.experts", _PARTS),
    **{f"ffn_{part}": f"feed_forward.{part}_proj" for part in ("gate", "up", "down")},
    **{f"ffn_{part}_shexp": f"feed_forward.shared_expert.{part}_proj" for part in ("gate", "up", "down")},
}


class GgufFamily(NamedTuple):
    architecture: str
    """the class in transformers"""
    model_type: str
    layer_names: Mapping[str, str] = USUAL_NAMES
    are_pairs_neighbours: bool = False
    """whether the rows of q and k that rotate together are neighbours; in Hugging Face's checkpoints they are
    half a head apart"""
    norm_offset: float = 0.0
    """what the file adds to the weights of norms, but for that within linear attention"""
    are_value_heads_tiled: bool = False
    """whether linear attention's value heads are ordered by their number within a key head; in Hugging Face's
    checkpoints those of one key head follow each other"""
    are_matrices_joined: bool = False
    """whether a tensor of linear attention has the rows of several matrices, key head by key head"""


GGUF_FAMILIES = {
    "llama": GgufFamily("LlamaForCausalLM", "llama", are_pairs_neighbours=True),
    "qwen2": GgufFamily("Qwen2ForCausalLM", "qwen2"),
    "qwen3": GgufFamily("Qwen3ForCausalLM", "qwen3"),
    "gemma": GgufFamily("GemmaForCausalLM", "gemma", norm_offset=1.0),
    "gemma2": GgufFamily("Gemma2ForCausalLM", "gemma2", _NORMS_AROUND, norm_offset=1.0),
    "gemma3": GgufFamily("Gemma3ForCausalLM", "gemma3_text", _NORMS_AROUND, norm_offset=1.0),
    "granite": GgufFamily("GraniteForCausalLM", "granite", are_pairs_neighbours=True),
    "lfm2": GgufFamily("Lfm2ForCausalLM", "lfm2", {**USUAL_NAMES, **_LFM2}),
    "olmo2": GgufFamily("Olmo2ForCausalLM", "olmo2", {**USUAL_NAMES, **_NORMS_AFTER}),
    "phi3": GgufFamily(
        "Phi3ForCausalLM",
        "phi3",
        {**USUAL_NAMES, "attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    ),
    "qwen35": GgufFamily(
        "Qwen3_5ForCausalLM",
        "qwen3_5_text",
        {**USUAL_NAMES, **_LINEAR_ATTENTION},
        norm_offset=1.0,
        are_value_heads_tiled=True,
    ),
    "smollm3": GgufFamily("SmolLM3ForCausalLM", "smollm3", are_pairs_neighbours=True),
}
"""`llama` is the name of Mistral's models too."""

GGUF_EXPERT_FAMILIES = {
    "gpt-oss": GgufFamily(
        "GptOssForCausalLM",
        "gpt_oss",
        {
            **_with_experts("mlp.router", "mlp.experts", _PARTS),
            "post_attention_norm": "post_attention_layernorm",
            "attn_sinks.weight": "self_attn.sinks",
        },
    ),
    "lfm2moe": GgufFamily(
        "Lfm2MoeForCausalLM",
        "lfm2_moe",
        {
            **_with_experts("feed_forward.gate", "feed_forward.experts", ("w1", "w3", "w2")),
            **_LFM2,
            "exp_probs_b.bias": "feed_forward.expert_bias",
        },
    ),
    "llama": GgufFamily(
        "MixtralForCausalLM",
        "mixtral",
        _with_experts("block_sparse_moe.gate", "block_sparse_moe.experts", ("w1", "w3", "w2")),
        are_pairs_neighbours=True,
    ),
    "llama4": GgufFamily("Llama4ForCausalLM", "llama4_text", _LLAMA4),
    "olmoe": GgufFamily("OlmoeForCausalLM", "olmoe", _QWEN_MOE),
    "qwen35moe": GgufFamily(
        "Qwen3_5MoeForCausalLM",
        "qwen3_5_moe_text",
        {**_QWEN_MOE, **_SHARED_EXPERT, **_LINEAR_ATTENTION},
        norm_offset=1.0,
        are_value_heads_tiled=True,
    ),
    "qwen3moe": GgufFamily("Qwen3MoeForCausalLM", "qwen3_moe", _QWEN_MOE),
    "qwen3next": GgufFamily(  # Qwen3.5 computes the same with other matrices
        "Qwen3_5MoeForCausalLM",
        "qwen3_5_moe_text",
        {**_QWEN_MOE, **_SHARED_EXPERT, **_JOINED_LINEAR_ATTENTION},
        norm_offset=1.0,
        are_matrices_joined=True,
    ),
}
"""the same for files with experts"""


def find_family(architecture: str, has_experts: bool) -> GgufFamily | None:
    return (GGUF_EXPERT_FAMILIES if has_experts else GGUF_FAMILIES).get(architecture)
