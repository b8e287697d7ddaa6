"""The tensors of a GGUF file, with the names and the order of rows of Hugging Face's checkpoints."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping, Set
from typing import NamedTuple

import torch

from ...errors import ConfigError
from ...gguf_families import EXPERT, WITHOUT_PART, GgufFamily, find_family
from ...gguf_file import GgufFile, Value
from .weight_format import FLOATS, Shape

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
UNUSED = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""tensors whose content is in config.json in another form"""
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_OUR_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
NORM = "norm.weight"
"""the end of the names of weights of norms"""


_ONE_EXPERT = re.compile(r"\.experts\.\d+\.")
_UNKNOWN = GgufFamily("", "")


class _Part(NamedTuple):
    """Where one of our tensors is."""

    stored: str
    """the name of the file's tensor"""
    expert: int | None
    """the number of the matrix within the tensor; None: it is the whole"""


class GgufTensors:
    """The tensors of one file. `metadata` is from the model's first file."""

    def __init__(self, file: GgufFile, metadata: Mapping[str, Value]) -> None:
        self._file = file
        self._architecture = str(metadata.get("general.architecture"))
        has_experts = bool(metadata.get(f"{self._architecture}.expert_count"))
        self._family = find_family(self._architecture, has_experts) or _UNKNOWN
        self._heads = self._find_heads(metadata)
        self._parts = {
            ours: part for name in file.tensors if name not in UNUSED for ours, part in self._find_parts(name)
        }

    @property
    def names(self) -> Set[str]:
        return self._parts.keys()

    def stored_name(self, name: str) -> str:
        return self._parts[name].stored if name in self._parts else self._stored_name(name)

    def describe(self, name: str) -> tuple[Shape, str]:
        part = self._parts[name]
        place = self._file.tensors[part.stored]
        return place.shape if part.expert is None else place.shape[1:], place.type

    def read(self, name: str) -> torch.Tensor:
        part = self._parts[name]
        place, (shape, _) = self._file.tensors[part.stored], self.describe(name)
        size = place.bytes if part.expert is None else place.bytes // place.shape[0]
        begin = place.begin + size * (part.expert or 0)
        # The view shares the file's memory, so callers must not write to it.
        raw = torch.frombuffer(memoryview(self._file.data), dtype=torch.uint8, count=size, offset=begin)
        if place.type in FLOATS:
            tensor = raw.view(FLOATS[place.type]).view(shape)
            if self._family.norm_offset and name.endswith(NORM):
                tensor = tensor - self._family.norm_offset
        else:
            tensor = raw.view(*shape[:-1], -1)
        heads = self._heads.get(name.rpartition(".")[0].rpartition(".")[2])
        if heads is None:
            return tensor
        if tensor.shape[0] % (2 * heads):
            raise ConfigError(
                f"{self._file.path}: tensor {part.stored} has {tensor.shape[0]} rows, which are not "
                f"the pairs of {heads} heads."
            )
        return _in_halves(tensor, heads)

    def _find_parts(self, stored: str) -> list[tuple[str, _Part]]:
        """Our names of a stored tensor, which may have the matrices of all experts of a layer."""
        name = self._name(stored)
        if EXPERT not in name:
            return [(name, _Part(stored, None))]
        experts = range(self._file.tensors[stored].shape[0])
        return [(name.replace(EXPERT, str(expert)), _Part(stored, expert)) for expert in experts]

    def _find_heads(self, metadata: Mapping[str, Value]) -> dict[str, int]:
        """The number of heads for each projection whose rows have another order."""
        if not self._family.are_pairs_neighbours:
            return {}
        keys = {"q_proj": "head_count", "k_proj": "head_count_kv"}
        heads: dict[str, int] = {}
        for projection, key in keys.items():
            stated = metadata.get(f"{self._architecture}.attention.{key}")
            count = stated or heads.get("q_proj", stated)
            if not isinstance(count, int) or count < 1:
                raise ConfigError(
                    f"{self._file.path}: the metadata key {self._architecture}.attention.{key} should be a "
                    f"positive number, found {reprlib.repr(count)}."
                )
            heads[projection] = count
        return heads

    def _name(self, name: str) -> str:
        """The name in Hugging Face's checkpoints. An unknown name is kept, so that it is reported."""
        base, _, part = name.rpartition(".")
        if base in NAMES:
            return f"{NAMES[base]}.{part}"
        layer = _LAYER.fullmatch(name)
        if layer is None or layer[2] not in self._family.layer_names:
            return name
        ours = self._family.layer_names[layer[2]]
        return f"model.layers.{layer[1]}.{ours}{'' if ours in WITHOUT_PART else '.' + layer[3]}"

    def _stored_name(self, name: str) -> str:
        """The name that GGUF files would give to our tensor `name`, for tensors that a file lacks."""
        stored = {ours: theirs for theirs, ours in {**NAMES, **self._family.layer_names}.items()}
        base, part = (name, "weight") if name.endswith(WITHOUT_PART) else name.rsplit(".", 1)
        layer = _OUR_LAYER.fullmatch(_ONE_EXPERT.sub(rf".experts.{EXPERT}.", base))
        if layer is None:
            return f"{stored.get(base, base)}.{part}"
        return f"blk.{layer[1]}.{stored.get(layer[2], layer[2])}.{part}"


def _in_halves(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorders the rows of each head as in Hugging Face's models: the first of each pair, then the second of
    each."""
    pairs = tensor.view(heads, -1, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)
