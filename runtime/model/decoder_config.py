"""The decoder's parameters from a checkpoint's config.json, checked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from ..checkpoint_json import CONFIG_FILE, config_text, decode_file
from ..errors import ConfigError
from ..families import Family, Norms, family_of
from .experts_config import ExpertsConfig, read_experts
from .interface.cache_spec import CacheSpec
from .ranks import Rank
from .rope_config import RopeConfig, parse_rope

STRETCHED = ("linear", "dynamic", "yarn")
"""kinds of stretching that `max_position_embeddings` does not include"""
FULL, SLIDING = "full_attention", "sliding_attention"
Activation = Literal["silu", "gelu_tanh"]
ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
"""by their names in config.json"""


class LayerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What one layer computes: attention, then a gated feed-forward layer, each added to the residual."""

    heads: int
    """query heads"""
    kv_heads: int
    head_dim: int
    scale: float
    """factor of the scores of attention"""
    softcap: float | None
    """scores s become softcap × tanh(s / softcap)"""
    window: int | None
    """sliding attention window in tokens; None: full attention"""
    rope: RopeConfig | None
    """None: queries and keys are not rotated"""
    qk_norm: bool
    """whether each head of queries and keys is normalised before it is rotated"""
    qkv_bias: bool
    output_bias: bool
    intermediate_size: int
    activation: Activation
    mlp_bias: bool
    has_sinks: bool
    """see `Family.has_sinks`"""
    experts: ExpertsConfig | None
    """in place of the gated feed-forward layer"""
    norms: Norms
    residual_multiplier: float
    """factor of what attention and the feed-forward layer add to the residual"""


class DecoderConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder-only transformer of layers with RMS norms.

    `max_positions` is the longest context that the positions allow, `default_positions` the longest without
    loss of quality.
    """

    vocab_size: int
    hidden_size: int
    layers: tuple[LayerConfig, ...]
    rms_norm_eps: float
    norm_offset: float | None
    """see `Family.norm_offset`"""
    is_fused: bool
    """see `Family.is_fused`"""
    tied_embeddings: bool
    embedding_multiplier: float
    logit_multiplier: float
    logit_softcap: float | None
    """logits l, after the multiplication, become softcap × tanh(l / softcap)"""
    max_positions: int
    default_positions: int
    dtype: str | None

    @property
    def cache_spec(self) -> CacheSpec:
        first = self.layers[0]
        return CacheSpec(
            first.heads, first.kv_heads, first.head_dim, tuple(layer.window for layer in self.layers)
        )

    @property
    def intermediate_size(self) -> int:
        """inner numbers of a token in the largest feed-forward layer"""
        experts = [layer.experts for layer in self.layers if layer.experts is not None]
        sizes = [layer.intermediate_size for layer in self.layers]
        return max([*sizes, *(each.per_token * each.intermediate_size for each in experts)])

    def take_part(self, rank: Rank) -> DecoderConfig:
        """Returns the config of a rank's part, whose layers have a part of the heads and inner numbers.
        Raises ConfigError if the ranks can't divide the heads."""
        return msgspec.structs.replace(self, layers=tuple(_take_part(layer, rank) for layer in self.layers))


class _ConfigFile(msgspec.Struct, kw_only=True):
    """The relevant fields of config.json, under the names of transformers 4 and 5."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    architectures: list[str] | None = None
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    hidden_activation: str | None = None
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    query_pre_attn_scalar: float | None = None
    attention_multiplier: float | None = None
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logits_scaling: float = 1.0
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None
    use_bidirectional_attention: bool | None = None
    sliding_window: int | None = None
    use_sliding_window: bool = False
    sliding_window_pattern: int | None = None
    max_window_layers: int | None = None
    layer_types: list[str] | None = None
    no_rope_layers: list[int] | None = None
    no_rope_layer_interval: int | None = None
    rope_theta: float | None = None
    rope_local_base_freq: float | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    partial_rotary_factor: float | None = None
    dtype: str | None = None
    torch_dtype: str | None = None


def _take_part(layer: LayerConfig, rank: Rank) -> LayerConfig:
    heads, kv_heads, count = layer.heads, layer.kv_heads, rank.total
    if heads % count or (kv_heads % count and count % kv_heads):
        fitting = [n for n in range(1, heads + 1) if not heads % n and not (kv_heads % n and n % kv_heads)]
        raise ConfigError(
            f"--tp {count}: the model has {heads} query heads and {kv_heads} KV heads, which {count} ranks "
            f"can't divide. Use {' or '.join(map(str, fitting))}."
        )
    experts = layer.experts
    if experts is not None:
        inner = len(rank.take(experts.intermediate_size))
        experts = msgspec.structs.replace(experts, intermediate_size=inner)
    return msgspec.structs.replace(
        layer,
        heads=heads // count,
        kv_heads=max(1, kv_heads // count),
        intermediate_size=len(rank.take(layer.intermediate_size)),
        experts=experts,
    )


def load_decoder_config(model: Path, pools: bool = False) -> DecoderConfig:
    """Reads `model`/config.json. Raises ConfigError with the value found and the supported ones. pools: the
    head is not used, so it needs no weight"""
    path = model / CONFIG_FILE
    family = family_of(model, pools)
    given = msgspec.json.encode({**family.defaults, **msgspec.json.decode(config_text(model))})
    file = decode_file(path, given, _ConfigFile)
    _check(path, file)
    kinds = _layer_types(path, file, family)
    ropes = _ropes(path, file, family)
    stretched = longest = file.max_position_embeddings
    if family.local_theta is None:
        stretched = round(ropes[FULL].original_positions * ropes[FULL].factor)
    return DecoderConfig(
        vocab_size=file.vocab_size,
        hidden_size=file.hidden_size,
        layers=tuple(
            msgspec.structs.replace(layer, experts=experts)
            for layer, experts in zip(
                _layers(file, family, kinds, ropes), read_experts(path, given, family.experts), strict=True
            )
        ),
        rms_norm_eps=file.rms_norm_eps,
        norm_offset=family.norm_offset,
        is_fused=family.is_fused,
        tied_embeddings=file.tie_word_embeddings or pools,
        embedding_multiplier=math.sqrt(file.hidden_size)
        if family.scales_embedding
        else file.embedding_multiplier,
        logit_multiplier=1 / file.logits_scaling,
        logit_softcap=file.final_logit_softcapping,
        max_positions=stretched if ropes[FULL].kind in STRETCHED else longest,
        default_positions=stretched if ropes[FULL].kind in ("linear", "yarn") else longest,
        dtype=file.dtype or file.torch_dtype,
    )


def _layers(
    file: _ConfigFile, family: Family, kinds: Sequence[str], ropes: dict[str, RopeConfig]
) -> tuple[LayerConfig, ...]:
    head_dim = _head_dim(file)
    scale = file.attention_multiplier
    if scale is None:
        scale = (file.query_pre_attn_scalar or head_dim) ** -0.5
    layer = LayerConfig(
        heads=file.num_attention_heads,
        kv_heads=file.num_key_value_heads or file.num_attention_heads,
        head_dim=head_dim,
        scale=scale,
        softcap=file.attn_logit_softcapping,
        window=None,
        rope=None,
        qk_norm=family.qk_norm,
        qkv_bias=file.attention_bias if family.qkv_bias is None else family.qkv_bias,
        output_bias=file.attention_bias if family.output_bias is None else family.output_bias,
        intermediate_size=file.intermediate_size,
        activation=ACTIVATIONS[_activation(file)],
        mlp_bias=file.mlp_bias,
        has_sinks=family.has_sinks,
        experts=None,
        norms=family.norms,
        residual_multiplier=file.residual_multiplier,
    )
    return tuple(
        msgspec.structs.replace(
            layer,
            window=file.sliding_window if kind == SLIDING else None,
            rope=ropes[kind] if is_rotated else None,
        )
        for kind, is_rotated in zip(kinds, _are_rotated(file), strict=True)
    )


def _check(path: Path, file: _ConfigFile) -> None:
    heads = file.num_attention_heads
    if heads < 1:
        raise ConfigError(f"{path}: num_attention_heads {heads} is not positive.")
    kv_heads = file.num_key_value_heads or heads
    activation, rotated = _activation(file), file.no_rope_layers
    refusals = {
        f"hidden_act {activation} is not supported, only {', '.join(ACTIVATIONS)}": activation
        not in ACTIVATIONS,
        f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}": bool(
            heads % kv_heads
        ),
        f"head_dim {file.head_dim} is odd": bool((file.head_dim or 0) % 2),
        f"num_hidden_layers {file.num_hidden_layers} is not positive": file.num_hidden_layers < 1,
        f"no_rope_layers has {len(rotated or ())} entries, fewer than num_hidden_layers": rotated is not None
        and len(rotated) < file.num_hidden_layers,
        "use_bidirectional_attention is not supported": bool(file.use_bidirectional_attention),
    }
    for message, applies in refusals.items():
        if applies:
            raise ConfigError(f"{path}: {message}.")


def _head_dim(file: _ConfigFile) -> int:
    return file.head_dim or file.hidden_size // file.num_attention_heads


def _activation(file: _ConfigFile) -> str:
    return file.hidden_activation or file.hidden_act


def _layer_types(path: Path, file: _ConfigFile, family: Family) -> Sequence[str]:
    """`SLIDING` or `FULL` for each layer."""
    layers = file.num_hidden_layers
    if family.window == "all layers":
        return [SLIDING] * layers
    if family.window == "never" or not file.use_sliding_window:
        return [FULL] * layers
    if file.layer_types is None:
        period = family.full_period and (file.sliding_window_pattern or family.full_period)
        first = layers if file.max_window_layers is None else file.max_window_layers
        return [
            SLIDING if (layer % period if period else layer > first) else FULL
            for layer in range(1, layers + 1)
        ]
    if len(file.layer_types) != layers or not {FULL, SLIDING} >= set(file.layer_types):
        raise ConfigError(
            f"{path}: layer_types must name {layers} layers (num_hidden_layers) as one of "
            f"{FULL}, {SLIDING}; got {file.layer_types}."
        )
    return file.layer_types


def _are_rotated(file: _ConfigFile) -> Sequence[bool]:
    layers, period = file.num_hidden_layers, file.no_rope_layer_interval
    if file.no_rope_layers is not None:  # despite its name, it has 1 for each layer that is rotated
        return [bool(rotated) for rotated in file.no_rope_layers[:layers]]
    return [period is None or layer % period != 0 for layer in range(1, layers + 1)]


def _ropes(path: Path, file: _ConfigFile, family: Family) -> dict[str, RopeConfig]:
    """The rotation of each type of layers."""
    given = {**(file.rope_scaling or {}), **(file.rope_parameters or {})}

    def parse(given: dict[str, Any], theta: float | None) -> RopeConfig:
        return parse_rope(
            path,
            given,
            theta=theta,
            partial=file.partial_rotary_factor,
            max_positions=file.max_position_embeddings,
            head_dim=_head_dim(file),
        )

    if family.local_theta is None:
        return dict.fromkeys((FULL, SLIDING), parse(given, file.rope_theta))
    local = file.rope_local_base_freq or family.local_theta
    if FULL in given or SLIDING in given:
        parts = {kind: given.get(kind) or {} for kind in (FULL, SLIDING)}
        return {FULL: parse(parts[FULL], file.rope_theta), SLIDING: parse(parts[SLIDING], local)}
    return {FULL: parse(given, file.rope_theta), SLIDING: parse({}, local)}
