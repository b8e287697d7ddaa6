"""The network to train: Qwen3's decoder, with Hugging Face's weight names so that export is a plain save."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

TEMPERATURE = 0.5
"""recommended: at 1 the model forgets the user's name in some of its chats"""


@dataclass(frozen=True)
class Shape:
    vocabulary: int = 2048
    hidden: int = 256
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    intermediate: int = 768
    rope_theta: float = 10000.0
    norm_eps: float = 1e-6
    context: int = 4096


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.q_proj = nn.Linear(shape.hidden, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden, shape.kv_heads * shape.head_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)
        self.q_norm = RMSNorm(shape.head_dim, shape.norm_eps)
        self.k_norm = RMSNorm(shape.head_dim, shape.norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(batch, length, -1, self.shape.head_dim)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(batch, length, -1, self.shape.head_dim)).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, -1, self.shape.head_dim).transpose(1, 2)
        groups = self.shape.heads // self.shape.kv_heads
        q = rotate(q, cos, sin).reshape(batch, self.shape.kv_heads, groups * length, -1)
        k = rotate(k, cos, sin)
        scores = (q @ k.transpose(-1, -2)).view(batch, self.shape.heads, length, length)
        weights = (scores.float() * self.shape.head_dim**-0.5 + mask).softmax(-1).bfloat16()
        out = (weights.view(batch, self.shape.kv_heads, groups * length, length) @ v).view(
            batch, self.shape.heads, length, -1
        )
        projected: Tensor = self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))
        return projected


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        down: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return down


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = MLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden, shape.norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden, shape.norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Decoder(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden, shape.norm_eps)
        cos, sin = rotary_tables(shape)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                residual_out = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * shape.layers) ** 0.5 if residual_out else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """int64 [batch, length] → bfloat16 hidden states [batch, length, hidden]."""
        x = self.embed_tokens(tokens).bfloat16()
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        mask = torch.full((tokens.shape[1], tokens.shape[1]), float("-inf")).triu(1)
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        normalised: Tensor = self.norm(x)
        return normalised

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.embed_tokens.weight)


def rotary_tables(shape: Shape) -> tuple[Tensor, Tensor]:
    """bfloat16 cos and sin [context, head_dim], halves repeated as in Llama's `rotate_half`."""
    inverse = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
    angles = torch.outer(torch.arange(shape.context).float(), inverse)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().bfloat16(), angles.sin().bfloat16()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


def hugging_face_config(shape: Shape, pad: int, end: int) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "dtype": "bfloat16",
        "eos_token_id": end,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": shape.context,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "pad_token_id": pad,
        "rms_norm_eps": shape.norm_eps,
        "rope_scaling": None,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": shape.vocabulary,
    }


def export(weights: dict[str, Tensor], shape: Shape, folder: Path, pad: int, end: int) -> None:
    """Writes config.json, generation_config.json and model.safetensors (bfloat16, tied embeddings)."""
    config = hugging_face_config(shape, pad, end)
    generation = {"do_sample": True, "temperature": TEMPERATURE, "eos_token_id": [end], "pad_token_id": pad}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
    tensors = {f"model.{name}": weight.detach().bfloat16().contiguous() for name, weight in weights.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
