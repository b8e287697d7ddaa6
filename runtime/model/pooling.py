"""Opens the pooler of a model: what follows its hidden states, and how other processes read the vectors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from ..checkpoint_json import CONFIG_FILE, decode_file
from ..errors import ConfigError
from ..messages import Pooling
from .interface.model import Model
from .pooler import Pooler, TokenPooler
from .pooling_config import Method, PoolingConfig

Vectors = Callable[[torch.Tensor], torch.Tensor]
_ACTIVATIONS: dict[str, Vectors] = {
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
    "ReLU": torch.relu,
    "GELU": F.gelu,
    "SiLU": F.silu,
}


def open_pooler(
    pooling: PoolingConfig, model: Model, slots: int, device: torch.device
) -> tuple[Pooling, Pooler]:
    """Reads the weights behind the hidden states. Raises ConfigError for a checkpoint that lacks some."""
    has_pages = model.config.cache_spec.layers > 0
    shared = {"takes_whole": not has_pages, "takes_pairs": True}
    if pooling.labels:
        from .transformers_models.encoder import EncoderHead, EncoderModel

        assert isinstance(model, EncoderModel)
        described = Pooling(
            size=len(pooling.labels),
            is_normalized=False,
            reads_cache=False,
            labels=list(pooling.labels),
            activation=pooling.activation,
            **shared,
        )
        return described, EncoderHead(model)
    method: Method = pooling.method or ("lasttoken" if has_pages else "mean")
    head, size = _open_dense(pooling.dense, model.config.hidden_size, device)
    described = Pooling(
        size=size,
        is_normalized=pooling.is_normalized,
        reads_cache=has_pages and method == "lasttoken",
        **shared,
    )
    return described, TokenPooler(method, slots, head)


class _DenseFile(msgspec.Struct):
    in_features: int
    out_features: int
    bias: bool = True
    activation_function: str = "torch.nn.modules.activation.Tanh"


def _open_dense(places: tuple[Path, ...], size: int, device: torch.device) -> tuple[Vectors, int]:
    """The product of sentence-transformers' linear layers, and the size of its results."""
    layers: list[Vectors] = []
    for place in places:
        layer, size = _open_layer(place, size, device)
        layers.append(layer)

    def run(pooled: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            pooled = layer(pooled)
        return pooled

    return run, size


def _open_layer(place: Path, size: int, device: torch.device) -> tuple[Vectors, int]:
    path = place / CONFIG_FILE
    file = decode_file(path, path.read_bytes(), _DenseFile)
    activation = _ACTIVATIONS.get(file.activation_function.rpartition(".")[2])
    if activation is None:
        raise ConfigError(
            f"{path}: activation_function {file.activation_function} is not supported. Supported: "
            f"{', '.join(_ACTIVATIONS)}."
        )
    weights = place / "model.safetensors"
    if not weights.exists():
        raise ConfigError(f"{weights}: this file is missing. Weights must be in safetensors.")
    tensors = {name: tensor.float().to(device) for name, tensor in load_file(weights).items()}
    expected = {"linear.weight": [file.out_features, size]} | (
        {"linear.bias": [file.out_features]} if file.bias else {}
    )
    found = {name: list(tensor.shape) for name, tensor in tensors.items()}
    if found != expected:
        raise ConfigError(f"{weights}: expected the tensors {expected}, got {found}.")
    weight, bias = tensors["linear.weight"], tensors.get("linear.bias")
    return lambda pooled: activation(F.linear(pooled, weight, bias)), file.out_features
