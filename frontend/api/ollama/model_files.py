"""Facts about a model, read once from its files at start-up."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from ....runtime.config import ServeConfig
from ....runtime.gguf_file import GgufFile
from ...core.text.tokenizer import read_json
from .responses import Details

MAX_HEADER_BYTES = 64 << 20
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


_FILE_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    25: "IQ4_NL",
    32: "BF16",
    38: "MXFP4",
}
"""Names of weight formats, by `general.file_type`."""
_CHAT_TEMPLATE = "tokenizer.chat_template"
_Info = dict[str, str | int | float]


class _Description(NamedTuple):
    """Facts from the weight files for `Details` and `model_info`. Unknown ones are empty or 0."""

    family: str
    parameters: int
    stored_as: str
    """The format of the weights in the files."""
    info: _Info


@dataclass(frozen=True)
class ModelFiles:
    """Facts about the model's files. `digest` depends on the configuration and on the names and sizes of the
    weight files, not on the weights. `size` is the size of the weight files in bytes."""

    size: int
    digest: str
    modified: datetime
    details: Details
    info: _Info

    @classmethod
    def read(cls, config: ServeConfig) -> ModelFiles:
        directory = config.model
        settings = read_json(directory / "config.json")
        weights = sorted(directory.glob("*.safetensors"))
        ggufs = [] if weights else sorted(directory.glob("*.gguf"))
        found = _describe_gguf(ggufs) if ggufs else _describe_safetensors(weights, settings)
        weights += ggufs
        stats = [path.stat() for path in weights]
        sizes = [(path.name, stat.st_size) for path, stat in zip(weights, stats, strict=True)]
        counted = {"general.parameter_count": found.parameters} if found.parameters else {}
        return cls(
            size=sum(stat.st_size for stat in stats),
            digest=sha256(json.dumps([settings, sizes], sort_keys=True).encode()).hexdigest(),
            modified=datetime.fromtimestamp(max((stat.st_mtime for stat in stats), default=0), UTC),
            details=Details(
                format="gguf" if ggufs else "safetensors",
                family=found.family,
                families=[found.family],
                parameter_size=_shown(found.parameters),
                quantization_level=(config.quantize or found.stored_as).upper(),
            ),
            info={**found.info, **counted},
        )


def _describe_gguf(paths: list[Path]) -> _Description:
    """Describes a GGUF model. The first file has the metadata of all files."""
    files = [GgufFile(path) for path in paths]
    metadata = files[0].metadata
    kind = metadata.get("general.file_type")
    tensors = [tensor for file in files for tensor in file.tensors.values()]
    bytes_of = Counter[str]()
    for tensor in tensors:
        bytes_of[tensor.type] += tensor.bytes
    ((most, _),) = bytes_of.most_common(1) or [("", 0)]
    return _Description(
        family=str(metadata.get("general.architecture", "")),
        parameters=sum(math.prod(tensor.shape) for tensor in tensors),
        stored_as=_FILE_TYPES.get(kind, most) if isinstance(kind, int) else most,
        info={
            key: value
            for key, value in metadata.items()
            if not isinstance(value, list) and key != _CHAT_TEMPLATE
        },
    )


def _describe_safetensors(paths: list[Path], settings: dict[str, Any]) -> _Description:
    """Describes a safetensors model. `info` has the configuration under GGUF's names, as Ollama shows it."""
    architecture = next(iter(settings.get("architectures") or []), "")
    family = str(settings.get("model_type") or architecture.removesuffix("ForCausalLM").lower())
    stored = settings.get("quantization_config") or {}
    dtype = str(settings.get("dtype") or settings.get("torch_dtype") or "")
    named = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
    counted = {f"{family}.{key}": settings.get(name) for name, key in _COUNTED.items()}
    return _Description(
        family=family,
        parameters=0 if stored else sum(map(_parameters, paths)),
        stored_as=str(stored.get("format") or stored.get("quant_method") or named.get(dtype, dtype)),
        info={
            "general.architecture": family,
            **{key: value for key, value in counted.items() if isinstance(value, int | float)},
        },
    )


def _parameters(path: Path) -> int:
    """The number of parameters in a safetensors file; 0 if its header is too long."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_HEADER_BYTES:
            return 0
        header: dict[str, Any] = json.loads(file.read(length))
    return sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")


def _shown(parameters: int) -> str:
    """The number as a text such as "7.6B" or "40.7M"; empty if it is unknown."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("K", 10**3)):
        if parameters >= size:
            return f"{parameters / size:.1f}{unit}"
    return str(parameters or "")
