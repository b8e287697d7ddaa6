"""Which tensors of a checkpoint become which weights of a model of transformers."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    Transpose,
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

from ..weight_formats import Checkpoint
from .llama4 import find_converters

_PARTS = "weight_(packed|scale|scale_inv|shape|zero_point|g_idx|global_scale)|qweight|qzeros|scales|g_idx"
QUANTIZED_PART = re.compile(rf"\.({_PARTS}|input_scale|input_global_scale)$")
"""the end of the name of a tensor that is a part of a quantized weight"""


@dataclass
class Source:
    """What one weight of the model is made of, or several if a converter splits a tensor."""

    names: list[str] = field(default_factory=list)
    """the tensors' names in the checkpoint"""
    converter: WeightConverter | None = None
    """None: the weight is stored as the model has it, perhaps quantized"""
    names_by_pattern: dict[str, list[str]] = field(default_factory=dict)
    """with a converter: the tensors' names by the converter's patterns"""

    @property
    def projection(self) -> str:
        """The name under which the checkpoint has a matrix, without the name of its part."""
        return _without_part(self.names[0])

    def find_experts(self) -> list[tuple[str, ...]]:
        """If the converter stacks the experts' matrices: for each expert the names of its projections, whose
        outputs follow each other. Otherwise empty."""
        operations = [type(each) for each in self.converter.operations] if self.converter else []
        if operations[-1:] == [Transpose]:  # the stack has each expert's inputs first
            operations.pop()
        if operations not in ([MergeModulelist], [MergeModulelist, Concatenate]):
            return []
        assert self.converter is not None
        by_part = [self.names_by_pattern[pattern] for pattern in self.converter.source_patterns]
        by_expert = (dict.fromkeys(map(_without_part, names)) for names in by_part)
        return list(zip(*by_expert, strict=False))  # the caller checks their number


def find_sources(
    model: PreTrainedModel, wanted: Mapping[str, torch.Tensor], checkpoint: Checkpoint
) -> dict[str, Source]:
    """The sources of the wanted weights by the model's names; of several weights from one source, the first
    one's. The table is that of transformers, and ours for Llama 4."""
    table = [*get_model_conversion_mapping(model), *find_converters(model)]
    renamings = [entry for entry in table if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in table if isinstance(entry, WeightConverter)]
    by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
    sources: dict[str, Source] = {}
    for name in sorted(checkpoint.names, key=dot_natural_key):
        whole = name if name in wanted else QUANTIZED_PART.sub(".weight", name)
        target, pattern = _rename(whole, renamings, converters, model.base_model_prefix, wanted)
        if target not in wanted:
            continue
        source = sources.setdefault(target, Source())
        source.names.append(name)
        if pattern is not None:
            if source.converter is None:
                source.converter = copy.deepcopy(by_pattern[pattern])
                source.names_by_pattern = {each: [] for each in source.converter.source_patterns}
            source.names_by_pattern[pattern].append(name)
            source.converter.add_tensor(target, name, pattern, partial(checkpoint.read, name))
    return sources


def _without_part(name: str) -> str:
    return name.rpartition(".")[0]


def _rename(
    name: str,
    renamings: list[WeightRenaming],
    converters: list[WeightConverter],
    prefix: str,
    wanted: Mapping[str, torch.Tensor],
) -> tuple[str, str | None]:
    """The model's name of a stored tensor, and the pattern of the converter that takes it."""
    target, pattern = rename_source_key(name, renamings, converters, prefix, wanted)
    if target not in wanted and name in wanted:
        target, pattern = rename_source_key(name, [], [], prefix, wanted)
    return target, pattern
