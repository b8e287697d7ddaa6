"""How a checkpoint makes a vector of an input, from the files of sentence-transformers and config.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from ..checkpoint_json import CONFIG_FILE, decode_file, read_config
from ..config import RunnerKind
from ..errors import ConfigError
from ..families import CLASSIFIES, GENERATES

MODULES_FILE = "modules.json"
_LENGTH_FILES = ("sentence_bert_config.json", "sentence_roberta_config.json")

Method = Literal["cls", "lasttoken", "max", "mean"]
Activation = Literal["identity", "sigmoid", "softmax"]
_METHODS: dict[str, Method] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
}
_ACTIVATIONS: dict[str, Activation] = {"Identity": "identity", "Sigmoid": "sigmoid", "Softmax": "softmax"}


@dataclass(frozen=True)
class PoolingConfig:
    """`method` is None if neither the user nor the checkpoint says it: the architecture decides."""

    method: Method | None = None
    is_normalized: bool = True
    dense: tuple[Path, ...] = ()
    """directories of the linear layers after pooling"""
    max_tokens: int | None = None
    """the longest input that the model was made for"""
    labels: tuple[str, ...] = ()
    """the classes; empty: the model makes embeddings"""
    activation: Activation = "identity"
    answers: tuple[int, int] | None = None
    """tokens for yes and no, if the only class is the difference of their logits"""


class _Module(msgspec.Struct):
    path: str
    type: str


class _Length(msgspec.Struct):
    max_seq_length: int | None = None


class _ConfigFile(msgspec.Struct):
    architectures: list[str] | None = None
    id2label: dict[str, str] | None = None
    num_labels: int | None = None
    problem_type: str | None = None
    sbert_ce_default_activation_function: str | None = None
    sentence_transformers: dict[str, Any] | None = None


def read_pooling(model: Path, runner: RunnerKind) -> PoolingConfig | None:
    """How the model in the directory pools; None if it generates. Raises ConfigError for a way of pooling
    that is not served."""
    if runner == "generate":
        return None
    file = read_config(model, _ConfigFile)
    architecture = (file.architectures or [""])[0]
    if architecture.endswith(CLASSIFIES):
        return _read_classes(file)
    if (model / MODULES_FILE).exists():
        return _read_modules(model)
    if runner == "auto" and (not architecture or architecture.endswith(GENERATES)):
        return None
    method: Method | None = "lasttoken" if architecture.endswith(GENERATES) else None
    return PoolingConfig(method, max_tokens=_read_length(model))


def _read_classes(file: _ConfigFile) -> PoolingConfig:
    named = file.id2label or {str(at): f"LABEL_{at}" for at in range(file.num_labels or 2)}
    labels = tuple(named[key] for key in sorted(named, key=int))
    stated = (file.sentence_transformers or {}).get("activation_fn")
    stated = str(stated or file.sbert_ce_default_activation_function or "").rpartition(".")[2]
    if stated in _ACTIVATIONS:
        activation = _ACTIVATIONS[stated]
    elif file.problem_type == "regression":
        activation = "identity"
    else:
        many = len(labels) > 1 and file.problem_type != "multi_label_classification"
        activation = "softmax" if many else "sigmoid"
    return PoolingConfig(labels=labels, activation=activation)


def _read_modules(model: Path) -> PoolingConfig:
    path = model / MODULES_FILE
    modules = decode_file(path, path.read_bytes(), list[_Module])
    method: Method | None = None
    dense: list[Path] = []
    is_normalized = False
    for module in modules:
        match module.type.rpartition(".")[2]:
            case "Transformer":
                pass
            case "Pooling" if method is None and not dense:
                method = _read_method(model / module.path / CONFIG_FILE)
            case "Dense" if method is not None:
                dense.append(model / module.path)
            case "Normalize":
                is_normalized = True
            case kind:
                raise ConfigError(
                    f"{path}: the module {kind} is not supported here. Supported: Transformer, then Pooling, "
                    "then any number of Dense, then Normalize."
                )
    return PoolingConfig(method, is_normalized, tuple(dense), _read_length(model))


def _read_method(path: Path) -> Method:
    fields = decode_file(path, path.read_bytes(), dict[str, Any])
    stated = fields.get("pooling_mode")  # the newest form names the method
    chosen = [name for name, value in fields.items() if name.startswith("pooling_mode_") and value]
    methods = [_METHODS[name] for name in chosen if name in _METHODS]
    if not chosen:
        methods = [method for method in _METHODS.values() if method == stated]
    if len(methods) != 1 or len(chosen) > 1:
        named = ", ".join(chosen) or str(stated)
        raise ConfigError(f"{path}: pooling by {named} is not supported. Supported: {', '.join(_METHODS)}.")
    return methods[0]


def _read_length(model: Path) -> int | None:
    for path in (model / name for name in _LENGTH_FILES):
        if path.exists():
            return decode_file(path, path.read_bytes(), _Length).max_seq_length
    return None
