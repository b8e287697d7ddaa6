"""The tensors of a GGUF file, with the names and the order of rows of Hugging Face's checkpoints."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping, Set
from functools import partial
from typing import NamedTuple

import torch

from ...errors import ConfigError
from ...gguf_families import EXPERT, GgufFamily, find_family
from ...gguf_file import GgufFile, Value
from .head_order import HeadOrder, JoinedRows
from .weight_format import FLOATS, Shape

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "token_embd_norm": "model.embedding_norm",
    "output": "lm_head",
}
UNUSED = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""tensors whose content is in config.json in another form"""
_LAYER = re.compile(r"blk\.(\d+)\.(.+)")
_OUR_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
NORM = "norm.weight"
"""the end of the names of weights of norms"""
INNER_NORM = "linear_attn.norm.weight"
"""the end of the names of norms that have no offset"""
LOGARITHM = "A_log"
"""the end of the names of tensors of which the file has minus the exponentials"""
AXES = {"conv.conv.weight": 1, "conv1d.weight": 1}
"""the dimension of size 1 that the file leaves out, by the ends of names"""


_ONE_EXPERT = re.compile(r"\.experts\.\d+\.")
_UNKNOWN = GgufFamily("", "")


class _Part(NamedTuple):
    """Where one of our tensors is."""

    stored: str
    """the name of the file's tensor"""
    expert: int | None
    """the number of the matrix within the tensor; None: it is the whole"""
    rows: torch.Tensor | None = None
    """the rows of the matrix, if the tensor has those of others too. int64"""


class HeadOrders(NamedTuple):
    """The rows and columns that a file stores in another order, by the names of modules, or of tensors that
    belong to none."""

    rows: Mapping[str, HeadOrder]
    columns: Mapping[str, HeadOrder]


def find_head_orders(file: GgufFile, metadata: Mapping[str, Value]) -> HeadOrders:
    """Raises ConfigError for numbers of heads that are missing or not positive."""
    family = _find_family(metadata)
    require = partial(_require_count, file, metadata)
    if family.are_pairs_neighbours:
        heads = require("attention.head_count")
        kv_heads = require("attention.head_count_kv", heads)
        return HeadOrders({"q_proj": HeadOrder(heads, 2), "k_proj": HeadOrder(kv_heads, 2)}, {})
    if not family.are_value_heads_tiled:
        return HeadOrders({}, {})
    key_heads, value_heads = require("ssm.group_count"), require("ssm.time_step_rank")
    numbers = HeadOrder(1, key_heads)
    vectors = numbers._replace(size=require("ssm.inner_size") // value_heads or 1)
    after_keys = vectors._replace(begin=2 * key_heads * require("ssm.state_size"))
    rows = {
        "in_proj_z": vectors,
        **dict.fromkeys(("in_proj_qkv", "conv1d"), after_keys),
        **dict.fromkeys(("in_proj_a", "in_proj_b", "A_log", "dt_bias"), numbers),
    }
    return HeadOrders(rows, {"out_proj": vectors})


def _require_count(
    file: GgufFile, metadata: Mapping[str, Value], key: str, default: int | None = None
) -> int:
    """Raises ConfigError for a number that is missing or not positive."""
    full = f"{metadata.get('general.architecture')}.{key}"
    stated = metadata.get(full)
    count = stated or default
    if not isinstance(count, int) or count < 1:
        raise ConfigError(
            f"{file.path}: the metadata key {full} should be a positive number, found {reprlib.repr(stated)}."
        )
    return count


def find_joined(file: GgufFile, metadata: Mapping[str, Value]) -> Mapping[str, JoinedRows]:
    """The matrices that one tensor has, by its name. Raises ConfigError for wrong numbers of heads."""
    if not _find_family(metadata).are_matrices_joined:
        return {}
    require = partial(_require_count, file, metadata)
    heads, value_heads = require("ssm.group_count"), require("ssm.time_step_rank")
    if value_heads % heads:
        raise ConfigError(
            f"{file.path}: the metadata key qwen3next.ssm.time_step_rank should be a multiple of the "
            f"{heads} key heads (ssm.group_count), found {value_heads}."
        )
    key, value, number = require("ssm.state_size"), require("ssm.inner_size") // heads, value_heads // heads
    first, last = slice(-1), slice(-1, None)
    return {
        "in_proj_qkvz": JoinedRows(
            heads, (key, key, value, value), {"in_proj_qkv": first, "in_proj_z": last}
        ),
        "in_proj_ba": JoinedRows(heads, (number, number), {"in_proj_b": first, "in_proj_a": last}),
    }


def _find_family(metadata: Mapping[str, Value]) -> GgufFamily:
    architecture = str(metadata.get("general.architecture"))
    has_experts = bool(metadata.get(f"{architecture}.expert_count"))
    return find_family(architecture, has_experts) or _UNKNOWN


class GgufTensors:
    """The tensors of one file. `metadata` is from the model's first file."""

    def __init__(self, file: GgufFile, metadata: Mapping[str, Value]) -> None:
        self._file = file
        self._family = _find_family(metadata)
        self._orders = find_head_orders(file, metadata)
        self._joined = find_joined(file, metadata)
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
        shape = place.shape if part.expert is None else place.shape[1:]
        if part.rows is not None:
            shape = (len(part.rows), *shape[1:])
        axis = next((axis for end, axis in AXES.items() if name.endswith(end)), None)
        return shape if axis is None else (*shape[:axis], 1, *shape[axis:]), place.type

    def read(self, name: str) -> torch.Tensor:
        part = self._parts[name]
        place, (shape, _) = self._file.tensors[part.stored], self.describe(name)
        size = place.bytes if part.expert is None else place.bytes // place.shape[0]
        begin = place.begin + size * (part.expert or 0)
        # The view shares the file's memory, so callers must not write to it.
        raw = torch.frombuffer(memoryview(self._file.data), dtype=torch.uint8, count=size, offset=begin)
        if part.rows is not None:
            raw = raw.view(place.shape[0], -1)[part.rows].flatten()
        if place.type in FLOATS:
            tensor = raw.view(FLOATS[place.type]).view(shape)
            if self._family.norm_offset and name.endswith(NORM) and not name.endswith(INNER_NORM):
                tensor = tensor - self._family.norm_offset
            if name.endswith(LOGARITHM):
                tensor = (-tensor).log()
            if columns := find_order(self._orders.columns, name):
                tensor = self._restore(part, columns, tensor.T).T.contiguous()
        else:
            tensor = raw.view(*shape[:-1], -1)
        rows = find_order(self._orders.rows, name)
        return tensor if rows is None else self._restore(part, rows, tensor)

    def _restore(self, part: _Part, order: HeadOrder, tensor: torch.Tensor) -> torch.Tensor:
        if problem := order.find_problem(tensor.shape[0]):
            raise ConfigError(f"{self._file.path}: tensor {part.stored} has {problem}.")
        return order.restore(tensor)

    def _find_parts(self, stored: str) -> list[tuple[str, _Part]]:
        """Our names of a stored tensor, which may have the matrices of all experts of a layer."""
        name = self._name(stored)
        if whole := next((each for each in self._joined if each in name.split(".")), None):
            return self._divide(stored, name, whole)
        if EXPERT not in name:
            return [(name, _Part(stored, None))]
        experts = range(self._file.tensors[stored].shape[0])
        return [(name.replace(EXPERT, str(expert)), _Part(stored, expert)) for expert in experts]

    def _divide(self, stored: str, name: str, whole: str) -> list[tuple[str, _Part]]:
        """The matrices of a stored tensor that we would call `name`."""
        shape, joined = self._file.tensors[stored].shape, self._joined[whole]
        if len(shape) != 2 or shape[0] != joined.num_rows:
            problem = f"has the shape {list(shape)}; expected {joined.num_rows} rows"
            raise ConfigError(f"{self._file.path}: tensor {stored} {problem}.")
        return [
            (name.replace(whole, matrix), _Part(stored, None, joined.find(matrix)))
            for matrix in joined.matrices
        ]

    def _name(self, name: str) -> str:
        """The name in Hugging Face's checkpoints. An unknown name is kept, so that it is reported."""
        layer = _LAYER.fullmatch(name)
        found = _rename(layer[2], self._family.layer_names) if layer else _rename(name, NAMES)
        if found is None:
            return name
        return f"model.layers.{layer[1]}.{found}" if layer else found

    def _stored_name(self, name: str) -> str:
        """The name that GGUF files would give to our tensor `name`, for tensors that a file lacks."""
        stored = {ours: theirs for theirs, ours in {**NAMES, **self._family.layer_names}.items()}
        for whole, joined in self._joined.items():
            for matrix in joined.matrices:
                stored.setdefault(f"linear_attn.{matrix}", stored[f"linear_attn.{whole}"])
        layer = _OUR_LAYER.fullmatch(_ONE_EXPERT.sub(rf".experts.{EXPERT}.", name))
        if layer is None:
            return _rename(name, stored) or name
        return f"blk.{layer[1]}.{_rename(layer[2], stored) or layer[2]}"


def _rename(name: str, names: Mapping[str, str]) -> str | None:
    """Looks the name up in `names`, and if it is not there, the name without its last part, which is then
    added again. None if neither is there."""
    base, _, part = name.rpartition(".")
    return names.get(name) or (f"{names[base]}.{part}" if base in names else None)


def find_order(orders: Mapping[str, HeadOrder], name: str) -> HeadOrder | None:
    """The order of a tensor that we call `name`."""
    return next((order for part, order in orders.items() if part in name.split(".")), None)
