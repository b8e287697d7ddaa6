"""The matrices of an adapter, as PEFT saves them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import torch

from ...config import MAX_LORA_RANK
from ...errors import ConfigError
from ..weight_formats.checkpoint import SafetensorsFile
from ..weight_formats.weight_format import FLOATS, is_finite
from .peft_config import CONFIG_FILE, PeftConfig, read_peft_config

WEIGHTS_FILE = "adapter_model.safetensors"
OTHER_WEIGHTS = "adapter_model.bin"
_TENSOR = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<matrix>[AB])(?:\.default)?\.weight")


class LowRank(NamedTuple):
    """What an adapter adds to the weight [outputs, inputs] of a module: scale · up · down."""

    down: torch.Tensor
    """[rank, inputs], as stored"""
    up: torch.Tensor
    """[outputs, rank]"""
    scale: float


class Shape(NamedTuple):
    outputs: int
    inputs: int


def hash_adapter(directory: Path) -> str:
    """The digest of the adapter's weights and config."""
    digest = sha256()
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        with open(directory / name, "rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
    return digest.hexdigest()


def read_adapter(
    directory: Path,
    modules: Mapping[str, Shape],
    max_rank: int,
    progress: Callable[[], None] = lambda: None,
) -> dict[str, LowRank]:
    """The adapter's matrices by the names of their modules.

    modules: the shapes of the modules that can be adapted. progress: called after each. Raises ConfigError
    for an adapter that can't be served, or that is none of this model.
    """
    config = read_peft_config(directory)
    file = _open_weights(directory)
    path = directory / WEIGHTS_FILE
    stored: dict[str, dict[str, str]] = {}
    for name in sorted(file.names):
        match = _TENSOR.fullmatch(name)
        if match is None:
            raise ConfigError(f"{path}: tensor {name} {_explain(name)}.")
        stored.setdefault(match["module"], {})[match["matrix"]] = name
    _check_modules(path, config, stored.keys(), modules)
    matrices = {}
    for module, tensors in stored.items():
        matrices[module] = _read_module(file, path, module, tensors, config, modules[module], max_rank)
        progress()
    return matrices


def _open_weights(directory: Path) -> SafetensorsFile:
    if not (directory / WEIGHTS_FILE).exists() and (directory / OTHER_WEIGHTS).exists():
        raise ConfigError(
            f"{directory}: has {OTHER_WEIGHTS}, but only {WEIGHTS_FILE} is read: save the adapter with "
            "save_pretrained(…, safe_serialization=True)."
        )
    if not (directory / WEIGHTS_FILE).exists():
        raise ConfigError(f"{directory}: {WEIGHTS_FILE} is missing. Copy or download the adapter again.")
    return SafetensorsFile(directory / WEIGHTS_FILE)


def _explain(name: str) -> str:
    """Why a tensor that is no matrix of a linear module is not served."""
    if "lora_embedding" in name:
        return "belongs to an embedding, but adapted embeddings are not served"
    if "magnitude" in name:
        return "belongs to DoRA, which is not served"
    return (
        "is no matrix A or B of a linear module, so it is not served: merge the adapter into the base model"
    )


def _check_modules(
    path: Path, config: PeftConfig, found: Collection[str], modules: Mapping[str, Shape]
) -> None:
    for module in found:
        if module not in modules:
            raise ConfigError(f"{path}: it adapts {module}, {_explain_module(module, modules)}.")
        if not config.targets(module):
            raise ConfigError(
                f"{path}: it adapts {module}, which target_modules of {CONFIG_FILE} does not name."
            )
    for module in modules:
        if config.targets(module) and module not in found:
            raise ConfigError(
                f"{path}: the matrices of {module} are missing, which target_modules of {CONFIG_FILE} names. "
                "Copy or download the adapter again."
            )


def _explain_module(module: str, modules: Mapping[str, Shape]) -> str:
    if "experts" in module:
        return "but adapters of experts are not served"
    if module.endswith("lm_head"):
        return "but adapters of the head are not served"
    if "embed" in module:
        return "but adapters of embeddings are not served"
    known = ", ".join(sorted({name.rpartition(".")[2] for name in modules}))
    return f"but the model has no such module that can be adapted; its modules are {known}"


def _read_module(
    file: SafetensorsFile,
    path: Path,
    module: str,
    tensors: Mapping[str, str],
    config: PeftConfig,
    shape: Shape,
    max_rank: int,
) -> LowRank:
    rank = config.rank(module)
    if rank > max_rank:
        raise ConfigError(
            f"{path.parent}: the rank of {module} is {rank}, but may be at most {max_rank}: raise "
            f"--max-lora-rank, up to {MAX_LORA_RANK}."
        )
    matrices = []
    for matrix, expected in (("A", (rank, shape.inputs)), ("B", (shape.outputs, rank))):
        if matrix not in tensors:
            raise ConfigError(f"{path}: matrix {matrix} of {module} is missing.")
        name = tensors[matrix]
        found, dtype = file.describe(name)
        if found != expected or dtype not in FLOATS:
            raise ConfigError(
                f"{path}: tensor {name}: expected {list(expected)} of {', '.join(FLOATS)}, got "
                f"{list(found)} of {dtype}."
            )
        tensor = file.read(name)
        if not is_finite(tensor):
            raise ConfigError(f"{path}: tensor {name} has values that are NaN or infinite.")
        matrices.append(tensor)
    down, up = matrices
    return LowRank(down, up, config.scale(module))
