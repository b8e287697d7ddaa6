"""GGUF files of small random models, written with the library `gguf`, and models with the same weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from checkpoints import random_model
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray
from transformers import PreTrainedModel

SHAPE: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
FACTORS = {
    Type.Q4_K: {0: 2e-4, 2: 1.5e-3},
    Type.Q5_K: {0: 1e-4, 2: 1.5e-3},
    Type.Q6_K: {208: 4e-5},
    Type.IQ4_NL: {0: 1e-3},
}
"""of the types that the library can't write: the places of a block's float16 factors, and their size"""
TypeOf = Callable[[str], Type]
"""the type of a tensor by its name in the file"""


def one_type(kind: Type) -> TypeOf:
    return lambda name: kind


def q4_k_m(name: str) -> Type:
    """As llama.cpp mixes types in such a file."""
    if name == "output.weight" or name.endswith((".0.attn_v.weight", ".0.ffn_down.weight")):
        return Type.Q6_K
    return Type.Q4_K


def write_gguf(path: Path, family: str, type_of: TypeOf, **fields: Any) -> PreTrainedModel:
    """Writes a file without a tokenizer's keys; returns the model with the weights that the file encodes."""
    heads = {"head_dim": 64} if family == "qwen3" else {}
    model = random_model(family, **{**SHAPE, **heads, **fields})
    writer = start_file(path, model)
    add_tensors(writer, model, type_of)
    finish_file(writer)
    return model


def start_file(path: Path, model: PreTrainedModel) -> gguf.GGUFWriter:
    config = model.config
    name = "llama" if config.model_type == "mistral" else config.model_type
    writer = gguf.GGUFWriter(path, name)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_key_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    return writer


def finish_file(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@torch.no_grad()
def add_tensors(writer: gguf.GGUFWriter, model: PreTrainedModel, type_of: TypeOf) -> None:
    """Sets the model's weights to those that the file encodes."""
    tied = bool(model.config.tie_word_embeddings)
    heads = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}
    for name, parameter in model.named_parameters():
        if tied and name.startswith("lm_head"):
            continue
        module, _, part = name.rpartition(".")
        stored = file_name(module, part)
        permuted = writer.arch == "llama" and module.endswith(("q_proj", "k_proj"))
        count = heads[module[-6:]] if permuted else 1
        values = parameter.float()
        if permuted:  # the first of each head's pairs, its second, then the next pair
            values = values.view(count, 2, -1, *values.shape[1:]).transpose(1, 2).reshape(values.shape)
        kind = Type.F32 if parameter.dim() == 1 else type_of(stored)
        raw = encoded(values.contiguous().numpy(), kind)
        writer.add_tensor(stored, raw, raw_dtype=kind)
        weight = torch.from_numpy(gguf.dequantize(raw, kind).copy()).view(parameter.shape)
        if permuted:
            weight = weight.view(count, -1, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)
        parameter.copy_(weight)


def file_name(module: str, part: str) -> str:
    if module in NAMES:
        return f"{NAMES[module]}.{part}"
    layer, _, inner = module.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{NAMES[inner]}.{part}"


def encoded(values: NDArray[np.float32], kind: Type) -> NDArray[Any]:
    """Random blocks for a type that the library can't write."""
    if kind not in FACTORS:
        encoded: NDArray[Any] = gguf.quantize(values, kind)
        return encoded
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(values.size)
    blocks = random.integers(0, 256, (values.size // elements, size), np.uint8)
    for place, factor in FACTORS[kind].items():
        factors = (factor * random.uniform(1, 1.2, len(blocks))).astype(np.float16)
        blocks[:, place : place + 2] = factors.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(values.shape[0], -1)
