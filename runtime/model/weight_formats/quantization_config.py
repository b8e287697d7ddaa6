"""Reads from config.json how a checkpoint's weights are quantized."""

from __future__ import annotations

from collections.abc import Callable, Set
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ...checkpoint_json import CONFIG_FILE, read_config
from ...errors import ConfigError
from ...gguf_file import GgufFile
from .checkpoint import Checkpoint
from .choosing import choose_awq, choose_fp8, choose_gptq, choose_mxfp4
from .compressed_tensors import choose_compressed_tensors
from .gguf_blocks import BlockFormat
from .gguf_tensors import find_head_orders, find_order
from .weight_format import FLOATS, ChooseFormat, FloatFormat, Projection, WeightFormat

METHODS: dict[str, Callable[[dict[str, Any], Set[str]], ChooseFormat]] = {
    "awq": choose_awq,
    "compressed-tensors": choose_compressed_tensors,
    "fp8": choose_fp8,
    "gptq": choose_gptq,
    "mxfp4": choose_mxfp4,
}
"""chooses formats for each `quant_method`, given the config and the names of the stored tensors"""

FLOATS_INSTEAD = (
    "Otherwise use the checkpoint in bfloat16, float16 or float32, which --quantize int4, int8 or fp8 "
    "quantizes, or a GGUF file"
)


class WeightFormats(NamedTuple):
    method: str
    """`quant_method` or "unquantized", for the log"""
    choose: ChooseFormat


class _ConfigFile(msgspec.Struct):
    quantization_config: dict[str, Any] | None = None
    compression_config: dict[str, Any] | None = None
    """the name of `quantization_config` in old checkpoints of compressed-tensors"""


def checkpoint_formats(model: Path, checkpoint: Checkpoint) -> WeightFormats:
    """The formats of a checkpoint's weights. Raises ConfigError for unsupported ones."""
    return (
        _gguf_formats(checkpoint, checkpoint.gguf)
        if checkpoint.gguf is not None
        else load_weight_formats(model, checkpoint.names)
    )


def _gguf_formats(checkpoint: Checkpoint, first: GgufFile) -> WeightFormats:
    """The formats of GGUF tensors, which have their types in the file."""
    columns = find_head_orders(first, first.metadata).columns

    def choose(projection: Projection) -> WeightFormat:
        name = f"{projection.name}.weight"
        stored = checkpoint.dtype(name) if name in checkpoint.names else next(iter(FLOATS))
        return FloatFormat() if stored in FLOATS else BlockFormat(stored, find_order(columns, name))

    return WeightFormats("GGUF", choose)


def load_weight_formats(model: Path, stored: Set[str]) -> WeightFormats:
    """Reads the formats from config.json. `stored`: the names of the checkpoint's tensors."""
    path = model / CONFIG_FILE
    file = read_config(model, _ConfigFile)
    settings = file.quantization_config or file.compression_config
    if not settings:
        return WeightFormats("unquantized", lambda projection: FloatFormat())
    method = str(settings.get("quant_method") or _unnamed_method(settings))
    if method not in METHODS:
        raise ConfigError(
            f"{path}: quantization_config: quant_method {method} is not supported. Use a checkpoint "
            f"quantized with {', '.join(METHODS)}. {FLOATS_INSTEAD}."
        )
    try:
        return WeightFormats(method, METHODS[method](settings, stored))
    except ConfigError as error:
        raise ConfigError(f"{path}: quantization_config ({method}): {error}. {FLOATS_INSTEAD}.") from None


def _unnamed_method(settings: dict[str, Any]) -> str:
    if "config_groups" in settings:
        return "compressed-tensors"
    return "bitsandbytes" if settings.get("load_in_4bit") or settings.get("load_in_8bit") else "missing"
