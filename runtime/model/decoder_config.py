"""The decoder's parameters from a checkpoint's config.json, checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ..checkpoint_json import CONFIG_FILE, read_config
from ..errors import ConfigError
from ..families import Family, family_of
from .experts_config import ExpertsConfig, read_experts
from .interface.cache_spec import CacheSpec
from .rope_config import RopeConfig, parse_rope

STRETCHED = ("linear", "dynamic", "yarn")
"""kinds of stretching that `max_position_embeddings` does not include"""


class DecoderConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder-only transformer with rotary positions, RMS norms and a gated SiLU feed-forward layer.

    `windows` has each layer's sliding attention window in tokens, None for full attention. `max_positions` is
    the longest context that the positions allow, `default_positions` the longest without loss of quality.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_norm_eps: float
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tied_embeddings: bool
    windows: tuple[int | None, ...]
    experts: tuple[ExpertsConfig | None, ...]
    """of each layer; None: it has one gated feed-forward layer"""
    rope: RopeConfig
    max_positions: int
    default_positions: int
    dtype: str | None

    @property
    def cache_spec(self) -> CacheSpec:
        return CacheSpec(self.heads, self.kv_heads, self.head_dim, self.windows)


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
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    sliding_window: int | None = None
    use_sliding_window: bool = False
    max_window_layers: int | None = None
    layer_types: list[str] | None = None
    rope_theta: float | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    partial_rotary_factor: float | None = None
    dtype: str | None = None
    torch_dtype: str | None = None


def load_decoder_config(model: Path) -> DecoderConfig:
    """Reads `model`/config.json. Raises ConfigError with the value found and the supported ones."""
    path = model / CONFIG_FILE
    family = family_of(model)
    file = read_config(model, _ConfigFile)
    _check(path, file)
    head_dim = file.head_dim or file.hidden_size // file.num_attention_heads
    rope = parse_rope(
        path,
        {**(file.rope_scaling or {}), **(file.rope_parameters or {})},
        theta=file.rope_theta,
        partial=file.partial_rotary_factor,
        max_positions=file.max_position_embeddings,
        head_dim=head_dim,
    )
    stretched = round(rope.original_positions * rope.factor)
    return DecoderConfig(
        vocab_size=file.vocab_size,
        hidden_size=file.hidden_size,
        intermediate_size=file.intermediate_size,
        layers=file.num_hidden_layers,
        heads=file.num_attention_heads,
        kv_heads=file.num_key_value_heads or file.num_attention_heads,
        head_dim=head_dim,
        rms_norm_eps=file.rms_norm_eps,
        qkv_bias=file.attention_bias if family.qkv_bias is None else family.qkv_bias,
        output_bias=file.attention_bias if family.output_bias is None else family.output_bias,
        mlp_bias=file.mlp_bias,
        qk_norm=family.qk_norm,
        tied_embeddings=file.tie_word_embeddings,
        windows=_windows(path, file, family),
        experts=tuple(read_experts(model, family.experts)),
        rope=rope,
        max_positions=stretched if rope.kind in STRETCHED else file.max_position_embeddings,
        default_positions=stretched if rope.kind in ("linear", "yarn") else file.max_position_embeddings,
        dtype=file.dtype or file.torch_dtype,
    )


def _check(path: Path, file: _ConfigFile) -> None:
    heads, kv_heads = file.num_attention_heads, file.num_key_value_heads or file.num_attention_heads
    refusals = {
        f"hidden_act {file.hidden_act} is not supported, only silu": file.hidden_act != "silu",
        f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}": bool(
            heads % kv_heads
        ),
        f"head_dim {file.head_dim} is odd": bool((file.head_dim or 0) % 2),
    }
    for message, applies in refusals.items():
        if applies:
            raise ConfigError(f"{path}: {message}.")


def _windows(path: Path, file: _ConfigFile, family: Family) -> tuple[int | None, ...]:
    layers = file.num_hidden_layers
    if family.window == "never" or file.sliding_window is None:
        return (None,) * layers
    if family.window == "all layers":
        return (file.sliding_window,) * layers
    if not file.use_sliding_window:
        return (None,) * layers
    if file.layer_types is None:
        first = layers if file.max_window_layers is None else file.max_window_layers
        return tuple(file.sliding_window if layer >= first else None for layer in range(layers))
    window_of = {"full_attention": None, "sliding_attention": file.sliding_window}
    if len(file.layer_types) != layers or not window_of.keys() >= set(file.layer_types):
        raise ConfigError(
            f"{path}: layer_types must name {layers} layers (num_hidden_layers) as one of "
            f"{', '.join(window_of)}; got {file.layer_types}."
        )
    return tuple(window_of[kind] for kind in file.layer_types)
