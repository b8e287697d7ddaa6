"""Chooses formats from the quantization config of compressed-tensors: groups of targets, each with a
scheme."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import msgspec

from ...checkpoint_json import convert_part
from ...errors import ConfigError
from .choosing import Target
from .compressed_formats import MXFP4_GROUP, ByteFormat, Mxfp4Format, PackQuantizedFormat, ScaleGrid
from .weight_format import ChooseFormat, FloatFormat, Projection, WeightFormat

BYTES = ("int-quantized", "float-quantized", "naive-quantized")
PACKED = "pack-quantized"
MXFP4 = "mxfp4-pack-quantized"


class _Scheme(msgspec.Struct):
    """The relevant fields of `QuantizationArgs` of the weights."""

    num_bits: int = 8
    type: str = "int"
    symmetric: bool = True
    strategy: str | None = None
    group_size: int | None = None
    block_structure: tuple[int, int] | str | None = None
    actorder: str | bool | None = None


class _Activations(msgspec.Struct):
    """The relevant fields of `QuantizationArgs` of the activations."""

    num_bits: int | None = None
    type: str | None = None


class _Group(msgspec.Struct):
    targets: list[str]
    weights: _Scheme | None = None
    input_activations: _Activations | None = None
    format: str | None = None


class _Settings(msgspec.Struct):
    config_groups: dict[str, _Group]
    format: str = "dense"
    ignore: list[str] | None = None
    kv_cache_scheme: dict[str, Any] | None = None
    sparsity_config: dict[str, Any] | None = None
    transform_config: dict[str, Any] | None = None


def choose_compressed_tensors(settings: dict[str, Any], stored: Set[str]) -> ChooseFormat:
    del stored  # not needed, because the config is complete
    parsed = convert_part(settings, _Settings)
    if parsed.kv_cache_scheme:
        raise ConfigError(
            "kv_cache_scheme is not supported: use a checkpoint whose KV cache is not quantized"
        )
    if (sparsity := (parsed.sparsity_config or {}).get("format", "dense")) != "dense":
        raise ConfigError(f"sparsity_config of the format {sparsity} is not supported, only dense")
    if parsed.transform_config and parsed.transform_config.get("config_groups"):
        raise ConfigError("transform_config is not supported: use a checkpoint without transforms")
    groups = [
        ([Target(text) for text in group.targets], _format(group, group.format or parsed.format))
        for group in parsed.config_groups.values()
        if group.weights is not None
    ]
    ignore = [Target(text) for text in parsed.ignore or ()]

    def choose(projection: Projection) -> WeightFormat:
        if any(target.rank(projection) is not None for target in ignore):
            return FloatFormat()
        ranked = [
            (rank, index)
            for index, (targets, _) in enumerate(groups)
            for target in targets
            if (rank := target.rank(projection)) is not None
        ]
        return groups[min(ranked)[1]][1] if ranked else FloatFormat()

    return choose


def _format(group: _Group, name: str) -> WeightFormat:
    scheme = group.weights
    assert scheme is not None
    strategy = scheme.strategy or _strategy_of_group_size(scheme.group_size)
    if name in BYTES and scheme.num_bits == 8 and scheme.type in ("int", "float"):
        return ByteFormat(
            "I8" if scheme.type == "int" else "F8_E4M3",
            _grid(strategy, scheme),
            symmetric=scheme.symmetric,
            rounds_activations=group.input_activations == _Activations(8, scheme.type),
        )
    if name == PACKED and scheme.num_bits in (4, 8) and scheme.type == "int":
        if strategy not in ("channel", "group"):
            raise ConfigError(f"strategy {strategy} of {PACKED} is not supported, only channel and group")
        size = _group_size(scheme) if strategy == "group" else None
        return PackQuantizedFormat(
            4 if scheme.num_bits == 4 else 8, size, scheme.symmetric, _is_ordered(scheme)
        )
    if name == MXFP4 and (scheme.num_bits, scheme.type, scheme.group_size) == (4, "float", MXFP4_GROUP):
        return Mxfp4Format()
    raise ConfigError(
        f"format {name} with {scheme.num_bits} bits of type {scheme.type} is not supported, only {PACKED} "
        f"with int of 4 or 8 bits, {MXFP4} with float of 4 bits in groups of {MXFP4_GROUP}, "
        f"and {', '.join(BYTES)} with int or float of 8 bits"
    )


def _strategy_of_group_size(size: int | None) -> str:
    """The strategy that compressed-tensors assumes if the config names none."""
    if size is None:
        return "tensor"
    return "channel" if size == -1 else "group"


def _grid(strategy: str, scheme: _Scheme) -> ScaleGrid:
    if _is_ordered(scheme):
        raise ConfigError(f"actorder {scheme.actorder} is only supported with {PACKED}")
    match strategy:
        case "tensor":
            return ScaleGrid(None, None)
        case "channel":
            return ScaleGrid(1, None)
        case "group":
            return ScaleGrid(1, _group_size(scheme))
        case "block":
            return ScaleGrid(*_block(scheme.block_structure))
    raise ConfigError(f"strategy {strategy} is not supported, only tensor, channel, group and block")


def _block(stated: tuple[int, int] | str | None) -> tuple[int, int]:
    """The shape of a block. Older configs write it as "128x128"."""
    sizes = (
        tuple(int(size) for size in stated.split("x") if size.isdecimal())
        if isinstance(stated, str)
        else stated
    )
    if sizes is None or len(sizes) != 2 or min(sizes) < 1:
        raise ConfigError(f"block_structure {stated} must be two positive numbers")
    return sizes[0], sizes[1]


def _group_size(scheme: _Scheme) -> int:
    if scheme.group_size is None or scheme.group_size < 1:
        raise ConfigError(f"group_size {scheme.group_size} must be positive for the strategy group")
    return scheme.group_size


def _is_ordered(scheme: _Scheme) -> bool:
    """Whether the group of each input is stored. With "weight" the order of the inputs matters only for
    calibration."""
    if scheme.actorder not in (None, False, True, "weight", "static", "group", "dynamic"):
        raise ConfigError(f"actorder {scheme.actorder} is not supported, only weight and group")
    return scheme.actorder in (True, "group", "dynamic")
