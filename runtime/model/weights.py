"""The decoder's weights, read from a checkpoint directly into the layout of the forward pass.

Projections that read the same input are fused into one matrix. A matrix that its kernel packs is freed as
soon as it is packed, so that memory never holds the weights twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

import torch

from ...kernels.elementwise import silu_and_mul
from ...kernels.linear import Linear
from ...kernels.rotary import HeadNorms
from .decoder_config import DecoderConfig
from .feed_forward import FeedForward, GatedFeedForward, expert_projections, load_experts, router_tensors
from .weight_formats import (
    ChooseFormat,
    EmbeddingRows,
    Projection,
    ProjectionLoader,
    TensorSpec,
    projection_tensors,
)

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
INPUT_NORM = "input_layernorm.weight"
POST_ATTENTION_NORM = "post_attention_layernorm.weight"
Q_NORM = "self_attn.q_norm.weight"
K_NORM = "self_attn.k_norm.weight"


@dataclass(frozen=True)
class LayerWeights:
    input_norm: torch.Tensor
    """[hidden]: weights of the norm before attention"""
    qkv: Linear
    """hidden → (heads + 2 × kv_heads) × head_dim: queries, keys, values"""
    head_norms: HeadNorms | None
    output: Linear
    post_attention_norm: torch.Tensor
    feed_forward: FeedForward


@dataclass(frozen=True)
class DecoderWeights:
    embedding: EmbeddingRows
    """maps token ids to embeddings [tokens, hidden]"""
    layers: tuple[LayerWeights, ...]
    norm: torch.Tensor
    """[hidden]: weights of the last norm"""
    head: Linear
    """product hidden → vocab"""


@dataclass(frozen=True)
class LayerProjections:
    """The projections of one layer, as checkpoints store them; those in one tuple read the same input."""

    qkv: tuple[Projection, Projection, Projection]
    output: Projection
    feed_forward: tuple[tuple[tuple[Projection, Projection], Projection], ...]
    """gate and up, and down: of the layer, or of each of its experts"""

    def all(self) -> tuple[Projection, ...]:
        of_parts = ((*gate_up, down) for gate_up, down in self.feed_forward)
        return (*self.qkv, self.output, *chain.from_iterable(of_parts))


def layer_projections(config: DecoderConfig, layer: int) -> LayerProjections:
    hidden = config.hidden_size
    q_size, kv_size = config.heads * config.head_dim, config.kv_heads * config.head_dim
    attention = f"model.layers.{layer}.self_attn."
    return LayerProjections(
        qkv=(
            Projection(attention + "q_proj", q_size, hidden, config.qkv_bias),
            Projection(attention + "k_proj", kv_size, hidden, config.qkv_bias),
            Projection(attention + "v_proj", kv_size, hidden, config.qkv_bias),
        ),
        output=Projection(attention + "o_proj", hidden, q_size, config.output_bias),
        feed_forward=_feed_forward_projections(config, layer),
    )


def _feed_forward_projections(
    config: DecoderConfig, layer: int
) -> tuple[tuple[tuple[Projection, Projection], Projection], ...]:
    experts, hidden, inner = config.experts[layer], config.hidden_size, config.intermediate_size
    if experts is not None:
        return tuple(expert_projections(experts, layer, hidden))
    mlp, biased = f"model.layers.{layer}.mlp.", config.mlp_bias
    gate, up = (Projection(mlp + name, inner, hidden, biased) for name in ("gate_proj", "up_proj"))
    return (((gate, up), Projection(mlp + "down_proj", hidden, inner, biased)),)


def _embedding(config: DecoderConfig) -> Projection:
    return Projection(
        EMBEDDING.removesuffix(".weight"), config.vocab_size, config.hidden_size, kind="Embedding"
    )


def _head(config: DecoderConfig) -> Projection:
    return Projection("lm_head", config.vocab_size, config.hidden_size)


def projections(config: DecoderConfig) -> Iterator[Projection]:
    """All matrices of a checkpoint, the embedding first."""
    yield _embedding(config)
    if not config.tied_embeddings:
        yield _head(config)
    for layer in range(config.layers):
        yield from layer_projections(config, layer).all()


def _norm_sizes(config: DecoderConfig) -> dict[str, int]:
    sizes = {FINAL_NORM: config.hidden_size}
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}."
        sizes |= {prefix + INPUT_NORM: config.hidden_size, prefix + POST_ATTENTION_NORM: config.hidden_size}
        if config.qk_norm:
            sizes |= {prefix + Q_NORM: config.head_dim, prefix + K_NORM: config.head_dim}
    return sizes


def expected_tensors(config: DecoderConfig, choose: ChooseFormat) -> dict[str, TensorSpec]:
    """The tensors of a checkpoint of this decoder, by name."""
    expected = {name: TensorSpec(((size,),)) for name, size in _norm_sizes(config).items()}
    for layer, experts in enumerate(config.experts):
        if experts is not None:
            expected |= router_tensors(experts, layer, config.hidden_size)
    for projection in projections(config):
        expected |= projection_tensors(projection, choose)
    return expected


def load_weights(
    loader: ProjectionLoader, config: DecoderConfig, progress: Callable[[str], None] = lambda text: None
) -> DecoderWeights:
    """Loads the weights from a checkpoint that was checked to have the expected tensors. `progress` is called
    after each layer."""
    if config.tied_embeddings:
        embedding, head = loader.load_rows_and_head(_embedding(config))
    else:
        embedding, head = loader.load_rows(_embedding(config)), loader.load_linear(_head(config))
    layers = []
    for layer in range(config.layers):
        layers.append(_load_layer(loader, config, layer))
        progress(f"loading weights: {layer + 1} of {config.layers} layers")
    return DecoderWeights(embedding, tuple(layers), loader.load_vector(FINAL_NORM), head)


def _load_layer(loader: ProjectionLoader, config: DecoderConfig, layer: int) -> LayerWeights:
    prefix, projections = f"model.layers.{layer}.", layer_projections(config, layer)
    return LayerWeights(
        input_norm=loader.load_vector(prefix + INPUT_NORM),
        qkv=loader.load_linear(*projections.qkv),
        head_norms=HeadNorms(
            loader.load_vector(prefix + Q_NORM), loader.load_vector(prefix + K_NORM), config.rms_norm_eps
        )
        if config.qk_norm
        else None,
        output=loader.load_linear(projections.output),
        post_attention_norm=loader.load_vector(prefix + POST_ATTENTION_NORM),
        feed_forward=_load_feed_forward(loader, config, layer),
    )


def _load_feed_forward(loader: ProjectionLoader, config: DecoderConfig, layer: int) -> FeedForward:
    experts = config.experts[layer]
    if experts is not None:
        return load_experts(loader, experts, layer, config.hidden_size)
    ((gate_up, down),) = _feed_forward_projections(config, layer)
    return GatedFeedForward(loader.load_linear(*gate_up), loader.load_linear(down), silu_and_mul)
