"""A checkpoint's files, mapped into memory and checked before any tensor is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from ...checkpoint_json import GET_IT_AGAIN, decode_file
from ...errors import ConfigError
from ...gguf_file import GgufFile
from .gguf_tensors import GgufTensors
from .weight_format import FLOATS, GET_FILE_AGAIN, Shape, TensorSpec, is_finite

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
SUPERFLUOUS = ("rotary_emb.inv_freq", "lm_head.weight")
"""name endings of tensors that some checkpoints have but the model does not need, such as a tied head"""
_EMBEDDING, _NORM = "embed_tokens.weight", "norm.weight"
INNER = "model."
"""the name of the model below the head, as a part of the whole model"""
PIECE = 1 << 20
"""number of values that are checked at a time; more would need more memory"""


class TensorFile(Protocol):
    @property
    def names(self) -> Set[str]:
        """The names of the tensors, as in Hugging Face's checkpoints."""

    def stored_name(self, name: str) -> str:
        """The file's name of a tensor that we call `name`. The file may lack the tensor."""

    def describe(self, name: str) -> tuple[Shape, str]:
        """The tensor's shape, and its dtype as safetensors or GGUF name it."""

    def read(self, name: str) -> torch.Tensor:
        """The tensor as stored; quantized tensors of GGUF as uint8 [outputs, bytes of a row]."""


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class SafetensorsFile:
    """A `TensorFile`."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError for a file that is missing or incomplete."""
        if not path.exists():
            raise ConfigError(f"{path}: this file is missing, but the checkpoint's index names it.")
        try:
            # The library's type hints are incomplete.
            self._file = cast(Any, safe_open(path, framework="pt", device="cpu"))
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"{path}: not a whole safetensors file ({error}). {GET_IT_AGAIN}.") from None
        self.names: Set[str] = frozenset(self._file.keys())

    def stored_name(self, name: str) -> str:
        return name

    def describe(self, name: str) -> tuple[Shape, str]:
        part = self._file.get_slice(name)
        return tuple(part.get_shape()), part.get_dtype()

    def read(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._file.get_tensor(name)
        return tensor


class InnerTensors:
    """A `TensorFile`: the tensors of a model that was saved without its head, under the names of the whole
    model."""

    def __init__(self, file: TensorFile) -> None:
        self._file = file
        self.names: Set[str] = frozenset(INNER + name for name in file.names)

    def stored_name(self, name: str) -> str:
        return self._file.stored_name(name.removeprefix(INNER))

    def describe(self, name: str) -> tuple[Shape, str]:
        return self._file.describe(name.removeprefix(INNER))

    def read(self, name: str) -> torch.Tensor:
        return self._file.read(name.removeprefix(INNER))


class StackedPart(NamedTuple):
    """A matrix of each expert, or a part of it, in a tensor [experts, …] that has those of all."""

    name: str
    """of the matrix in an expert, such as `gate_proj`"""
    part: str
    """such as `weight`"""
    outputs: slice
    """which of an expert's outputs belong to the matrix"""
    is_transposed: bool
    """whether the tensor is [experts, inputs, outputs]"""

    def take(self, tensor: torch.Tensor, expert: int) -> torch.Tensor:
        of_expert = tensor[expert]
        return (of_expert.T if self.is_transposed else of_expert)[self.outputs]


class Checkpoint:
    """The tensors of a model directory: one safetensors file, shards with an index, or GGUF files."""

    def __init__(self, model: Path) -> None:
        self.gguf = _first_gguf(model)
        """the first GGUF file, which has the metadata of all"""
        self._parts: dict[str, tuple[str, int, StackedPart]] = {}
        """by the names that `split` gave: a stored tensor, an expert, and its part"""
        self._files: dict[Path, TensorFile]
        if self.gguf is not None:
            self._files = _gguf_files(model, self.gguf)
            self._file_of = {name: path for path, file in self._files.items() for name in file.names}
            return
        self._file_of = _file_of_tensor(model)
        self._files = {path: SafetensorsFile(path) for path in sorted(set(self._file_of.values()))}
        for name, path in self._file_of.items():
            if name not in self._files[path].names:
                raise ConfigError(f"{path}: tensor {name} is missing, but {INDEX_FILE} places it there.")
        if _EMBEDDING in self._file_of:
            self._files = {path: InnerTensors(file) for path, file in self._files.items()}
            self._file_of = {INNER + name: path for name, path in self._file_of.items()}

    def split(self, stored: str, experts: str, parts: Sequence[StackedPart]) -> None:
        """Replaces the name of a stored tensor [experts, …], if there is one, by a name for each expert and
        part: `experts`, the expert's number, the matrix and its part."""
        if stored not in self._file_of:
            return
        shape, _ = self._describe(stored)
        path = self._file_of.pop(stored)
        for expert in range(shape[0] if shape else 0):
            for each in parts:
                name = f"{experts}.{expert}.{each.name}.{each.part}"
                self._file_of[name] = path
                self._parts[name] = stored, expert, each

    @property
    def files(self) -> list[Path]:
        return list(self._files)

    @property
    def names(self) -> Set[str]:
        return self._file_of.keys()

    def check(self, expected: Mapping[str, TensorSpec], has_others: bool = False) -> None:
        """Raises ConfigError unless the tensors have the expected names, shapes and dtypes. has_others: the
        checkpoint may have other tensors too"""
        for name, spec in expected.items():
            if name not in self._file_of:
                if spec.optional:
                    continue
                stored_name = next(iter(self._files.values())).stored_name(name)
                raise ConfigError(f"{self._place}: tensor {stored_name} {spec} is missing.")
            found, dtype = self._describe(name)
            if found not in spec.shapes or dtype not in spec.dtypes:
                raise ConfigError(f"{self.label(name)}: expected {spec}, got {list(found)} of {dtype}.")
        for name in sorted(self._file_of.keys() - expected.keys()):
            if not (has_others or name.endswith(SUPERFLUOUS)):
                raise ConfigError(f"{self.label(name)} is not part of this architecture.")

    def check_finite(self, names: Iterable[str]) -> None:
        """Raises ConfigError for a tensor in 16 or 32 bits that contains NaN or infinity."""
        for name in names:
            if self.dtype(name) not in FLOATS:
                continue
            if not all(is_finite(piece) for piece in torch.split(self.read(name).flatten(), PIECE)):
                problem = f"has values that are NaN or infinite. {GET_FILE_AGAIN}, or use another checkpoint"
                raise ConfigError(f"{self.label(name)} {problem}.")

    def label(self, name: str) -> str:
        """The path of the file that has the tensor, and the tensor's name in that file: the start of an error
        message."""
        path = self._file_of[name]
        if name in self._parts:
            stored, expert, _ = self._parts[name]
            return f"{path}: tensor {stored}, expert {expert}"
        return f"{path}: tensor {self._files[path].stored_name(name)}"

    def float_dtype(self) -> torch.dtype:
        """The dtype of the embedding, or of the first norm if the embedding is quantized."""
        names = sorted(self.names, key=lambda name: (not name.endswith(_EMBEDDING), not name.endswith(_NORM)))
        dtypes = (self._describe(name)[1] for name in names)
        return next(FLOATS[dtype] for dtype in dtypes if dtype in FLOATS)

    def read(self, name: str) -> torch.Tensor:
        """The tensor as stored, contiguous. It is mapped from the file, so the process needs no memory of its
        own for the tensor, unless it is a part of a stacked one."""
        if name in self._parts:
            stored, expert, part = self._parts[name]
            return part.take(self._files[self._file_of[name]].read(stored), expert).contiguous()
        return self._files[self._file_of[name]].read(name)

    def dtype(self, name: str) -> str:
        return self._describe(name)[1]

    @property
    def _place(self) -> Path:
        """What an error about a missing tensor names: the only file, the index of several safetensors files,
        or the directory of several GGUF files."""
        first, *others = self._files
        if not others:
            return first
        return first.parent if self.gguf is not None else first.parent / INDEX_FILE

    def _describe(self, name: str) -> tuple[Shape, str]:
        if name in self._parts:
            stored, expert, part = self._parts[name]
            shape, dtype = self._files[self._file_of[name]].describe(stored)
            is_transposed = part.is_transposed and len(shape) == 3
            empty = torch.empty(shape, device="meta")
            return tuple(part._replace(is_transposed=is_transposed).take(empty, expert).shape), dtype
        return self._files[self._file_of[name]].describe(name)


def _first_gguf(model: Path) -> GgufFile | None:
    """The path of the first GGUF file; None for a model in safetensors."""
    paths = [] if any(model.glob("*.safetensors")) else sorted(model.glob("*.gguf"))
    return GgufFile(_linked_gguf(paths[0])) if paths else None


def _gguf_files(model: Path, first: GgufFile) -> dict[Path, TensorFile]:
    """The GGUF files. `arbora serve model.gguf` makes a directory with a link; errors name its target."""
    others = [GgufFile(_linked_gguf(path)) for path in sorted(model.glob("*.gguf"))[1:]]
    return {file.path: GgufTensors(file, first.metadata) for file in (first, *others)}


def _linked_gguf(path: Path) -> Path:
    target = path.readlink() if path.is_symlink() else path
    return target if target.suffix == ".gguf" else path  # in other caches links lead to hashes as names


def _file_of_tensor(model: Path) -> dict[str, Path]:
    index = model / INDEX_FILE
    if index.exists():
        weight_map = decode_file(index, index.read_bytes(), _Index).weight_map
        return {name: model / file for name, file in weight_map.items()}
    single = model / SINGLE_FILE
    if not single.exists():
        raise ConfigError(
            f"{model}: neither {SINGLE_FILE} nor {INDEX_FILE} exists. Weights must be in safetensors or GGUF."
        )
    return dict.fromkeys(SafetensorsFile(single).names, single)
