"""The decoder's weights, read from a checkpoint directly into the layout of the forward pass.

Projections that read the same input are fused into one matrix. A matrix that its kernel packs is freed as
soon as it is packed, so that memory never holds the weights twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

import torch

from ...kernels.linear import Linear
from ...kernels.rotary import HeadNorms
from ..families import Norms
from .decoder_config import DecoderConfig
from .feed_forward import (
    ACTIVATIONS,
    FeedForward,
    FeedForwardProjections,
    GatedFeedForward,
    expert_projections,
    load_experts,
    router_tensors,
    split_experts,
)
from .weight_formats import (
    Checkpoint,
    ChooseFormat,
    EmbeddingRows,
    Projection,
    ProjectionLoader,
    Run,
    Split,
    TensorSpec,
    by_inputs,
    by_outputs,
    projection_tensors,
)

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LAYER_NORMS: dict[Norms, dict[str, str]] = {
    "before": {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"},
    "around": {
        "attention_norm": "input_layernorm",
        "attention_output_norm": "post_attention_layernorm",
        "mlp_norm": "pre_feedforward_layernorm",
        "mlp_output_norm": "post_feedforward_layernorm",
    },
}
"""a checkpoint's name of each norm of `LayerWeights`"""
Q_NORM = "self_attn.q_norm.weight"
K_NORM = "self_attn.k_norm.weight"
SINKS = "self_attn.sinks"


@dataclass(frozen=True)
class LayerWeights:
    """Norms have weights [hidden]; see `rms_norm` for their dtype."""

    attention_norm: torch.Tensor
    """of attention's input"""
    qkv: Linear
    """hidden → (heads + 2 × kv_heads) × head_dim: queries, keys, values"""
    head_norms: HeadNorms | None
    output: Linear
    mlp_norm: torch.Tensor
    """of the feed-forward layer's input"""
    feed_forward: FeedForward
    sinks: torch.Tensor | None = None
    """float32 [heads]: see `paged_attention`"""
    attention_output_norm: torch.Tensor | None = None
    mlp_output_norm: torch.Tensor | None = None

    def name_products(self, names: LayerProjections) -> list[tuple[Linear, tuple[Projection, ...]]]:
        """The products, except those of experts, each with the projections whose outputs it has."""
        products = [(self.qkv, names.qkv), (self.output, (names.output,))]
        if isinstance(self.feed_forward, GatedFeedForward):
            gate_up, down = self.feed_forward.products
            (of_gate_up, of_down), *_ = names.feed_forward
            products += [(gate_up, of_gate_up), (down, (of_down,))]
        return products


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

    qkv: tuple[Projection, ...]
    output: Projection
    feed_forward: tuple[FeedForwardProjections, ...]
    """one, or one for each expert"""

    def all(self) -> tuple[Projection, ...]:
        of_parts = ((*gate_up, down) for gate_up, down in self.feed_forward)
        return (*self.qkv, self.output, *chain.from_iterable(of_parts))


def layer_projections(config: DecoderConfig, layer: int) -> LayerProjections:
    of, hidden = config.layers[layer], config.hidden_size
    attention = f"model.layers.{layer}.self_attn."
    q, kv = Run(of.heads, of.head_dim), Run(of.kv_heads, of.head_dim)
    qkv: dict[str, tuple[Run, ...]] = {"q_proj": (q,), "k_proj": (kv,), "v_proj": (kv,)}
    if config.is_fused:
        qkv = {"qkv_proj": (q, kv, kv)}
    return LayerProjections(
        qkv=tuple(
            by_outputs(attention + name, runs, hidden, biased=of.qkv_bias) for name, runs in qkv.items()
        ),
        output=by_inputs(attention + "o_proj", hidden, q, biased=of.output_bias),
        feed_forward=_feed_forward_projections(config, layer),
    )


def _feed_forward_projections(config: DecoderConfig, layer: int) -> tuple[FeedForwardProjections, ...]:
    of, hidden = config.layers[layer], config.hidden_size
    inner, mlp = Run(of.intermediate_size), f"model.layers.{layer}.mlp."
    if of.experts is not None:
        return tuple(expert_projections(of.experts, layer, hidden))
    named: dict[str, tuple[Run, ...]] = {"gate_proj": (inner,), "up_proj": (inner,)}
    if config.is_fused:
        named = {"gate_up_proj": (inner, inner)}
    gate_up = tuple(by_outputs(mlp + name, runs, hidden, biased=of.mlp_bias) for name, runs in named.items())
    return (FeedForwardProjections(gate_up, by_inputs(mlp + "down_proj", hidden, inner, biased=of.mlp_bias)),)


def _embedding(config: DecoderConfig) -> Projection:
    return Projection(
        EMBEDDING.removesuffix(".weight"), config.vocab_size, config.hidden_size, kind="Embedding"
    )


def _head(config: DecoderConfig) -> Projection:
    return by_outputs("lm_head", (Run(config.vocab_size),), config.hidden_size)


def projections(config: DecoderConfig) -> Iterator[Projection]:
    """All matrices of a checkpoint, the embedding first."""
    yield _embedding(config)
    if not config.tied_embeddings:
        yield _head(config)
    for layer in range(len(config.layers)):
        yield from layer_projections(config, layer).all()


def _vector_sizes(config: DecoderConfig) -> dict[str, int]:
    sizes = {FINAL_NORM: config.hidden_size}
    for number, layer in enumerate(config.layers):
        prefix = f"model.layers.{number}."
        names = LAYER_NORMS[layer.norms].values()
        sizes |= {f"{prefix}{name}.weight": config.hidden_size for name in names}
        if layer.qk_norm:
            sizes |= {prefix + Q_NORM: layer.head_dim, prefix + K_NORM: layer.head_dim}
        if layer.has_sinks:
            sizes[prefix + SINKS] = layer.heads
    return sizes


def expected_tensors(config: DecoderConfig, choose: ChooseFormat) -> dict[str, TensorSpec]:
    """The tensors of a checkpoint of this decoder, by name."""
    expected = {name: TensorSpec(((size,),)) for name, size in _vector_sizes(config).items()}
    for number, layer in enumerate(config.layers):
        if layer.experts is not None:
            expected |= router_tensors(layer.experts, number, config.hidden_size)
    for projection in projections(config):
        expected |= projection_tensors(projection, choose)
    return expected


def check_tensors(
    checkpoint: Checkpoint, config: DecoderConfig, choose: ChooseFormat, has_others: bool = False
) -> dict[str, TensorSpec]:
    """Returns the expected tensors. Raises ConfigError, naming the tensor, for a checkpoint that lacks one,
    has one of another shape, or unless `has_others` has others. Gives stacked experts the names of their
    matrices."""
    for number, layer in enumerate(config.layers):
        if layer.experts is not None and layer.experts.family.is_stacked:
            split_experts(checkpoint, layer.experts, number)
    expected = expected_tensors(config, choose)
    checkpoint.check(expected, has_others=has_others)
    return expected


def load_weights(
    loader: ProjectionLoader, config: DecoderConfig, progress: Callable[[str], None] = lambda text: None
) -> DecoderWeights:
    """Loads the weights from a checkpoint that was checked to have the expected tensors. `progress` is called
    after each layer."""
    if config.tied_embeddings:
        head_split = Split("outputs", (Run(config.vocab_size),))
        embedding, head = loader.load_rows_and_head(_embedding(config), head_split)
    else:
        embedding, head = loader.load_rows(_embedding(config)), loader.load_linear(_head(config))
    layers = []
    for layer in range(len(config.layers)):
        layers.append(_load_layer(loader, config, layer))
        progress(f"loading weights: {layer + 1} of {len(config.layers)} layers")
    return DecoderWeights(embedding, tuple(layers), _load_norm(loader, config, FINAL_NORM), head)


def _load_layer(loader: ProjectionLoader, config: DecoderConfig, layer: int) -> LayerWeights:
    prefix, projections = f"model.layers.{layer}.", layer_projections(config, layer)
    head_norms = None
    if config.layers[layer].qk_norm:
        q, k = (_load_norm(loader, config, prefix + name).float() for name in (Q_NORM, K_NORM))
        head_norms = HeadNorms(q, k, config.rms_norm_eps)
    norms, has_sinks = LAYER_NORMS[config.layers[layer].norms], config.layers[layer].has_sinks
    return LayerWeights(
        qkv=loader.load_linear(*projections.qkv),
        head_norms=head_norms,
        output=loader.load_linear(projections.output),
        feed_forward=_load_feed_forward(loader, config, layer),
        sinks=_load_sinks(loader, config, layer) if has_sinks else None,
        **{field: _load_norm(loader, config, f"{prefix}{name}.weight") for field, name in norms.items()},
    )


def _load_sinks(loader: ProjectionLoader, config: DecoderConfig, layer: int) -> torch.Tensor:
    name = f"model.layers.{layer}.{SINKS}"
    of_heads = loader.rank.take_heads(config.layers[layer].heads)
    return loader.load_vector(name, dtype=torch.float32)[of_heads.start : of_heads.stop]


def _load_feed_forward(loader: ProjectionLoader, config: DecoderConfig, layer: int) -> FeedForward:
    of = config.layers[layer]
    if of.experts is not None:
        return load_experts(loader, of.experts, layer, config.hidden_size)
    ((gate_up, down),) = _feed_forward_projections(config, layer)
    return GatedFeedForward(
        loader.load_linear(*gate_up), loader.load_linear(down), ACTIVATIONS[of.activation]
    )


def _load_norm(loader: ProjectionLoader, config: DecoderConfig, name: str) -> torch.Tensor:
    """The weights of a norm, as `rms_norm` takes them."""
    if config.norm_offset is None:
        return loader.load_vector(name)
    return loader.load_vector(name, dtype=torch.float32) + config.norm_offset
