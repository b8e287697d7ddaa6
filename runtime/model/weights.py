"""The decoder's weights, read from a checkpoint directly into the layout of the forward pass.

Projections that read the same input are fused into one matrix. A matrix that its kernel packs is freed as
soon as it is packed, so that the weights never stand twice in memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ...kernels.linear import Linear
from ...kernels.rotary import HeadNorms
from .checkpoint import Checkpoint, Shape
from .decoder_config import DecoderConfig

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"


@dataclass(frozen=True)
class LayerWeights:
    input_norm: torch.Tensor
    """[hidden]"""
    qkv: Linear
    """hidden → (heads + 2 × kv_heads) × head_dim: queries, keys, values"""
    head_norms: HeadNorms | None
    output: Linear
    post_attention_norm: torch.Tensor
    gate_up: Linear
    """hidden → 2 × intermediate: gate, up"""
    down: Linear


@dataclass(frozen=True)
class DecoderWeights:
    embedding: torch.Tensor
    """[vocab, hidden]"""
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    """[hidden]"""
    head: Linear
    """hidden → vocab"""


def expected_tensors(config: DecoderConfig) -> dict[str, Shape]:
    """The name and shape of every tensor in a checkpoint of this decoder."""
    hidden = config.hidden_size
    expected: dict[str, Shape] = {EMBEDDING: (config.vocab_size, hidden), FINAL_NORM: (hidden,)}
    if not config.tied_embeddings:
        expected[HEAD] = (config.vocab_size, hidden)
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}."
        expected |= {prefix + name: shape for name, shape in _layer_tensors(config).items()}
    return expected


def _layer_tensors(config: DecoderConfig) -> dict[str, Shape]:
    hidden, inner = config.hidden_size, config.intermediate_size
    q_size, kv_size = config.heads * config.head_dim, config.kv_heads * config.head_dim
    expected: dict[str, Shape] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    if config.qk_norm:
        expected |= {
            "self_attn.q_norm.weight": (config.head_dim,),
            "self_attn.k_norm.weight": (config.head_dim,),
        }
    for name, out_size, in_size, bias in (
        ("self_attn.q_proj", q_size, hidden, config.qkv_bias),
        ("self_attn.k_proj", kv_size, hidden, config.qkv_bias),
        ("self_attn.v_proj", kv_size, hidden, config.qkv_bias),
        ("self_attn.o_proj", hidden, q_size, config.output_bias),
        ("mlp.gate_proj", inner, hidden, config.mlp_bias),
        ("mlp.up_proj", inner, hidden, config.mlp_bias),
        ("mlp.down_proj", hidden, inner, config.mlp_bias),
    ):
        expected[name + ".weight"] = (out_size, in_size)
        if bias:
            expected[name + ".bias"] = (out_size,)
    return expected


def load_weights(
    checkpoint: Checkpoint,
    config: DecoderConfig,
    dtype: torch.dtype,
    device: torch.device,
    batch_invariant: bool = False,
) -> DecoderWeights:
    """`checkpoint` was checked to have the expected tensors. batch_invariant: see `Linear.pack`."""
    loader = _Loader(checkpoint, expected_tensors(config), dtype, device, batch_invariant)
    if config.tied_embeddings:
        loader.find_sizes([EMBEDDING])
    embedding = loader.joined([EMBEDDING])
    layers = tuple(_load_layer(loader, f"model.layers.{layer}.", config) for layer in range(config.layers))
    head = (
        Linear.pack(embedding, None, batch_invariant)
        if config.tied_embeddings
        else loader.linear([HEAD.removesuffix(".weight")])
    )
    return DecoderWeights(embedding, layers, loader.joined([FINAL_NORM]), head)


def _load_layer(loader: _Loader, prefix: str, config: DecoderConfig) -> LayerWeights:
    attention, mlp = prefix + "self_attn.", prefix + "mlp."
    return LayerWeights(
        input_norm=loader.joined([prefix + "input_layernorm.weight"]),
        qkv=loader.linear([attention + "q_proj", attention + "k_proj", attention + "v_proj"]),
        head_norms=HeadNorms(
            loader.joined([attention + "q_norm.weight"]),
            loader.joined([attention + "k_norm.weight"]),
            config.rms_norm_eps,
        )
        if config.qk_norm
        else None,
        output=loader.linear([attention + "o_proj"]),
        post_attention_norm=loader.joined([prefix + "post_attention_layernorm.weight"]),
        gate_up=loader.linear([mlp + "gate_proj", mlp + "up_proj"]),
        down=loader.linear([mlp + "down_proj"]),
    )


@dataclass(frozen=True)
class _Loader:
    checkpoint: Checkpoint
    expected: dict[str, Shape]
    dtype: torch.dtype
    device: torch.device
    batch_invariant: bool

    def linear(self, names: list[str]) -> Linear:
        """The named projections as one with concatenated outputs."""
        weights, biases = [name + ".weight" for name in names], [name + ".bias" for name in names]
        has_bias = biases[0] in self.expected
        self.find_sizes(weights, has_bias)
        weight = self.joined(weights)
        bias = self.joined(biases) if has_bias else None
        return Linear.pack(weight, bias, self.batch_invariant)

    def find_sizes(self, weights: list[str], biased: bool = False) -> None:
        """Sizes of their joined product, found before the weights are read, as the trial takes memory."""
        if self.batch_invariant:
            outputs = sum(self.expected[name][0] for name in weights)
            Linear.find_sizes(outputs, self.expected[weights[0]][1], self.dtype, self.device, biased)

    def joined(self, names: list[str]) -> torch.Tensor:
        """The named tensors, joined along their first dimension."""
        sizes = [self.expected[name][0] for name in names]
        shape = (sum(sizes), *self.expected[names[0]][1:])
        joined = torch.empty(shape, dtype=self.dtype, device=self.device)
        for part, name in zip(torch.split(joined, sizes), names, strict=True):
            self.checkpoint.read_into(part, name)
        return joined
