"""Small random checkpoints of every family, written by transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

CONFIGS: dict[str, type[PreTrainedConfig]] = {
    "gemma2": Gemma2Config,
    "gemma3": Gemma3TextConfig,
    "gpt_oss": GptOssConfig,
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "mixtral": MixtralConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "qwen3_moe": Qwen3MoeConfig,
}
VOCAB_SIZE = 300
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
    "bos_token_id": 0,
    "eos_token_id": 1,
}
_GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 9, "sliding_window": 12}
OF_FAMILY: dict[str, dict[str, Any]] = {
    "gemma2": {**_GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 4.0},
    "gemma3": {**_GEMMA, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "mistral": {"sliding_window": None},
    "qwen3": {"head_dim": 32},
    "gpt_oss": {
        "head_dim": 32,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150_000.0,
            "factor": 8.0,
            "original_max_position_embeddings": 32,
            "truncate": False,
        },
    },
    "mixtral": {"num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": None},
    "qwen3_moe": {
        "head_dim": 32,
        "num_experts": 8,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
}


WINDOWED: dict[str, Any] = {
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "use_sliding_window": True,
    "sliding_window": 5,
    "layer_types": ["sliding_attention", "full_attention"],
}
"""of a small qwen3: head norms, grouped queries, and a window in every other layer"""


def random_model(family: str, seed: int = 0, **fields: Any) -> PreTrainedModel:
    """A float32 model whose every parameter is random, norms and biases too. `fields` change its config."""
    torch.manual_seed(seed)
    config = CONFIGS[family](**{**SHAPE, **OF_FAMILY.get(family, {}), **fields})
    model: PreTrainedModel = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def save_model(model: PreTrainedModel, directory: Path, **saving: Any) -> Path:
    """`saving` is for save_pretrained, such as max_shard_size."""
    model.save_pretrained(directory, **saving)
    return directory


def edit_config(directory: Path, **fields: Any) -> None:
    """Set fields of config.json; None removes one."""
    path = directory / "config.json"
    config = {**json.loads(path.read_text()), **fields}
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))


def change_tensor(directory: Path, name: str, tensor: torch.Tensor | None) -> None:
    """Replaces a tensor of a checkpoint in one file; None removes it."""
    path = directory / "model.safetensors"
    tensors = load_file(path)
    tensors.pop(name, None)
    save_file(tensors if tensor is None else {**tensors, name: tensor}, path)
