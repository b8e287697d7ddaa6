"""Rotary positions in config.json: `rope_parameters` (transformers 5) or `rope_scaling` (4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from ..checkpoint_json import GET_IT_AGAIN, convert_part
from ..errors import ConfigError

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn"]
ROPE_KINDS: tuple[RopeKind, ...] = get_args(RopeKind)
DEFAULT_THETA = 10000.0


class RopeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The frequencies of rotation. `dim` dimensions of each head are rotated.

    `original_positions` is the context length the model was trained for before it was stretched by `factor`.
    """

    kind: RopeKind = "default"
    theta: float = 10000.0
    dim: int
    original_positions: int
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True


class _RopeFields(msgspec.Struct, kw_only=True):
    """The fields of `rope_parameters` (or `rope_scaling`)."""

    rope_type: str | None = None
    type: str | None = None
    rope_theta: float | None = None
    partial_rotary_factor: float | None = None
    factor: float | None = None
    original_max_position_embeddings: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


_OPTIONAL = (
    "low_freq_factor",
    "high_freq_factor",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "mscale",
    "mscale_all_dim",
)


def parse_rope(
    path: Path,
    given: dict[str, Any],
    *,
    theta: float | None,
    partial: float | None,
    max_positions: int,
    head_dim: int,
) -> RopeConfig:
    """Checks the field `given` of the config.json at `path`. The other arguments are other fields of it."""
    fields = _fields(path, given)
    kind = _kind(path, given, fields)
    original = max_positions
    if kind in ("llama3", "yarn"):
        original = fields.original_max_position_embeddings or max_positions
    optional = {name: value for name in _OPTIONAL if (value := getattr(fields, name)) is not None}
    return RopeConfig(
        kind=kind,
        theta=fields.rope_theta or theta or DEFAULT_THETA,
        dim=int(head_dim * (fields.partial_rotary_factor or partial or 1.0)),
        original_positions=original,
        factor=_factor(path, kind, fields.factor, max_positions / original),
        truncate=fields.truncate,
        **optional,
    )


def _fields(path: Path, given: dict[str, Any]) -> _RopeFields:
    try:
        return convert_part(given, _RopeFields)
    except ConfigError as error:
        raise ConfigError(f"{path}: rope_parameters: {error}. {GET_IT_AGAIN}.") from None


def _kind(path: Path, given: dict[str, Any], fields: _RopeFields) -> RopeKind:
    kind = fields.rope_type or fields.type or "default"
    for known in ROPE_KINDS:
        if kind == known and not any(isinstance(value, dict) for value in given.values()):
            return known
    raise ConfigError(
        f"{path}: rope_parameters {given} are not supported. Supported rope types: "
        f"{', '.join(ROPE_KINDS)}, one for all layers."
    )


def _factor(path: Path, kind: RopeKind, factor: float | None, implied: float) -> float:
    if kind == "default":
        return 1.0
    if factor is None and kind == "yarn":
        return implied
    if factor is None or factor < 1:
        raise ConfigError(
            f"{path}: rope_parameters: rope type {kind} needs a factor of at least 1; got {factor}."
        )
    return factor
