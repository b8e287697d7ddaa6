"""A checkpoint's safetensors files, mapped into memory and checked before any tensor is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from ...errors import ConfigError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
SUPERFLUOUS = ("rotary_emb.inv_freq", "lm_head.weight")
"""name endings of unused tensors in some checkpoints; a tied head is one"""

Shape = tuple[int, ...]


class TensorSpec(NamedTuple):
    """The shapes and dtypes that a tensor may have in a checkpoint."""

    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...] = tuple(FLOATS)
    """as safetensors names them, such as `I32`"""
    optional: bool = False

    def __str__(self) -> str:
        return f"{' or '.join(str(list(shape)) for shape in self.shapes)} of {', '.join(self.dtypes)}"


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class Checkpoint:
    """The tensors of a model directory: one file, or shards with an index."""

    def __init__(self, model: Path) -> None:
        self._file_of = _file_of_tensor(model)
        self._files = {path: _open(path) for path in sorted(set(self._file_of.values()))}
        for name, path in self._file_of.items():
            if name not in self._files[path].keys():  # noqa: SIM118 (not a mapping)
                raise ConfigError(f"{path}: tensor {name} is missing, but {INDEX_FILE} places it there.")

    @property
    def files(self) -> list[Path]:
        return list(self._files)

    @property
    def names(self) -> Set[str]:
        return self._file_of.keys()

    def check(self, expected: Mapping[str, TensorSpec]) -> None:
        """Raises ConfigError unless the tensors have the expected names, shapes and dtypes."""
        for name, spec in expected.items():
            if name not in self._file_of:
                if spec.optional:
                    continue
                raise ConfigError(f"{self._place}: tensor {name} {spec} is missing.")
            found, dtype = self._describe(name)
            if found not in spec.shapes or dtype not in spec.dtypes:
                raise ConfigError(
                    f"{self._file_of[name]}: tensor {name}: expected {spec}, got {list(found)} of {dtype}."
                )
        for name in sorted(self._file_of.keys() - expected.keys()):
            if not name.endswith(SUPERFLUOUS):
                raise ConfigError(f"{self._file_of[name]}: tensor {name} has no place in this architecture.")

    def float_dtype(self, names: Sequence[str]) -> torch.dtype:
        """The dtype of the first of these tensors that is not quantized."""
        dtypes = (self._describe(name)[1] for name in names)
        return next(FLOATS[dtype] for dtype in dtypes if dtype in FLOATS)

    def read(self, name: str) -> torch.Tensor:
        """The tensor as stored. It is mapped from the file, so it takes no memory of the process."""
        tensor: torch.Tensor = self._files[self._file_of[name]].get_tensor(name)
        return tensor

    @property
    def _place(self) -> Path:
        paths = list(self._files)
        return paths[0] if len(paths) == 1 else paths[0].parent / INDEX_FILE

    def _describe(self, name: str) -> tuple[Shape, str]:
        part = self._files[self._file_of[name]].get_slice(name)
        return tuple(part.get_shape()), part.get_dtype()


def _file_of_tensor(model: Path) -> dict[str, Path]:
    index = model / INDEX_FILE
    if index.exists():
        try:
            weight_map = msgspec.json.decode(index.read_bytes(), type=_Index).weight_map
        except msgspec.DecodeError as error:
            raise ConfigError(f"{index}: {error}") from None
        return {name: model / file for name, file in weight_map.items()}
    single = model / SINGLE_FILE
    if not single.exists():
        raise ConfigError(
            f"{model}: neither {SINGLE_FILE} nor {INDEX_FILE} is there. Weights must be in safetensors."
        )
    return dict.fromkeys(_open(single).keys(), single)


def _open(path: Path) -> Any:
    """A safetensors file; its own type is not exported."""
    if not path.exists():
        raise ConfigError(f"{path}: this file is missing, but {INDEX_FILE} names it.")
    try:
        return safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{path}: not a whole safetensors file: {error}") from None
