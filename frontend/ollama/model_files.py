"""Facts about a model, read once from its files at start-up."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from ...runtime.config import ServeConfig
from ..text.tokenizer import read_json
from .responses import Details

MOST_HEADER_BYTES = 64 << 20
_COUNTED = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rope_theta": "rope.freq_base",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "vocab_size": "vocab_size",
}


@dataclass(frozen=True)
class ModelFiles:
    """`digest` depends on the configuration and on the names and sizes of the weight files, not on the
    weights. `size` is that of the weight files in bytes."""

    size: int
    digest: str
    modified: datetime
    details: Details
    info: dict[str, str | int | float]

    @classmethod
    def read(cls, config: ServeConfig) -> ModelFiles:
        directory = config.model
        settings = read_json(directory / "config.json")
        weights = sorted((*directory.glob("*.safetensors"), *directory.glob("*.gguf")))
        stats = [path.stat() for path in weights]
        family = str(settings.get("model_type", ""))
        is_quantized = bool(settings.get("quantization_config"))
        parameters = 0 if is_quantized else sum(map(_parameters, weights))
        is_gguf = any(path.suffix == ".gguf" for path in weights)
        sizes = [(path.name, stat.st_size) for path, stat in zip(weights, stats, strict=True)]
        return cls(
            size=sum(stat.st_size for stat in stats),
            digest=sha256(json.dumps([settings, sizes], sort_keys=True).encode()).hexdigest(),
            modified=datetime.fromtimestamp(max((stat.st_mtime for stat in stats), default=0), UTC),
            details=Details(
                format="gguf" if is_gguf else "safetensors",
                family=family,
                families=[family],
                parameter_size=_shown(parameters),
                quantization_level=_quantization(config, settings),
            ),
            info=dict(_info(family, settings, parameters)),
        )


def _parameters(path: Path) -> int:
    """The number of parameters in a safetensors file; 0 for another one."""
    if path.suffix != ".safetensors":
        return 0
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MOST_HEADER_BYTES:
            return 0
        header: dict[str, Any] = json.loads(file.read(length))
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")


def _shown(parameters: int) -> str:
    """The number as a text such as "7.6B" or "40.7M"; empty if it is unknown."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if parameters >= size:
            return f"{parameters / size:.1f}{unit}"
    return str(parameters or "")


def _quantization(config: ServeConfig, settings: dict[str, Any]) -> str:
    """The format of the weights in memory, such as "BF16", "INT8" or "FP8"."""
    stored = settings.get("quantization_config") or {}
    method = config.quantize or stored.get("format") or stored.get("quant_method")
    dtype = str(settings.get("dtype") or settings.get("torch_dtype") or "")
    named = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
    return str(method or named.get(dtype, dtype)).upper()


def _info(family: str, settings: dict[str, Any], parameters: int) -> Iterator[tuple[str, str | int | float]]:
    """The configuration under GGUF's names, as Ollama shows it."""
    yield "general.architecture", family
    if parameters:
        yield "general.parameter_count", parameters
    for name, key in _COUNTED.items():
        value = settings.get(name)
        if isinstance(value, int | float):
            yield f"{family}.{key}", value
