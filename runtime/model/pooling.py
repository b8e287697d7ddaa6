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
from .interface.model import ClassifyingModel, Model
from .pooler import HeadPooler, Pooler, TokenPooler
from .pooling_config import Method, PoolingConfig
from .weight_formats import Checkpoint, TensorSpec

CLASSES = "score.weight"
Vectors = Callable[[torch.Tensor], torch.Tensor]
_ACTIVATIONS: dict[str, Vectors] = {
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
    "ReLU": torch.relu,
    "GELU": F.gelu,
    "SiLU": F.silu,
}


def open_pooler(
    pooling: PoolingConfig, model: Model, checkpoint: Checkpoint, slots: int
) -> tuple[Pooling, Pooler]:
    """Reads the weights behind the hidden states. Raises ConfigError for a checkpoint that lacks some."""
    has_pages, hidden = not model.config.cache_spec.is_empty, model.config.hidden_size
    described = Pooling(
        size=len(pooling.labels),
        is_normalized=pooling.is_normalized,
        reads_cache=has_pages,
        takes_whole=not has_pages,
        labels=list(pooling.labels),
        activation=pooling.activation,
    )
    if isinstance(model, ClassifyingModel):
        return described, HeadPooler(model.classify)
    if pooling.labels:
        return described, TokenPooler("lasttoken", slots, _open_classes(checkpoint, described.size, hidden))
    method: Method = pooling.method or ("lasttoken" if has_pages else "mean")
    head, described.size = _open_dense(pooling.dense, hidden)
    described.reads_cache = has_pages and method == "lasttoken"
    return described, TokenPooler(method, slots, head)


def _open_classes(checkpoint: Checkpoint, classes: int, hidden: int) -> Vectors:
    """The head of a decoder that classifies."""
    checkpoint.check({CLASSES: TensorSpec(((classes, hidden),))}, has_others=True)
    return _linear(checkpoint.read(CLASSES), None)


def _linear(weight: torch.Tensor, bias: torch.Tensor | None) -> Vectors:
    weight, bias = weight.float(), None if bias is None else bias.float()

    def run(pooled: torch.Tensor) -> torch.Tensor:
        return F.linear(pooled, weight.to(pooled.device), None if bias is None else bias.to(pooled.device))

    return run


class _DenseFile(msgspec.Struct):
    in_features: int
    out_features: int
    bias: bool = True
    activation_function: str = "torch.nn.modules.activation.Tanh"


def _open_dense(places: tuple[Path, ...], size: int) -> tuple[Vectors, int]:
    """The product of sentence-transformers' linear layers, and the size of its results."""
    layers: list[Vectors] = []
    for place in places:
        layer, size = _open_layer(place, size)
        layers.append(layer)

    def run(pooled: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            pooled = layer(pooled)
        return pooled

    return run, size


def _open_layer(place: Path, size: int) -> tuple[Vectors, int]:
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
    tensors = load_file(weights)
    expected = {"linear.weight": [file.out_features, size]} | (
        {"linear.bias": [file.out_features]} if file.bias else {}
    )
    found = {name: list(tensor.shape) for name, tensor in tensors.items()}
    if found != expected:
        raise ConfigError(f"{weights}: expected the tensors {expected}, got {found}.")
    product = _linear(tensors["linear.weight"], tensors.get("linear.bias"))
    return lambda pooled: activation(product(pooled)), file.out_features
