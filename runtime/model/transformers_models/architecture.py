"""Loads a checkpoint into a model of transformers, one weight at a time."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import ClassVar, Protocol

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.initialization import no_init_weights

from ....kernels.linear import Linear
from ...errors import ConfigError
from ..interface.model import Model
from ..ranks import Rank, refuse_parts
from ..weight_formats import (
    Checkpoint,
    ChooseFormat,
    FloatFormat,
    Projection,
    ProjectionLoader,
    TensorSpec,
    projection_tensors,
)
from .description import TransformersConfig, build, describe, find_linears
from .experts import FIRST, SECOND, is_experts, pack_stacked, set_products
from .model import TransformersModel
from .modules import LinearModule, StoredEmbedding
from .sources import QUANTIZED_PART, Source, find_sources

MAX_CUDA_HEAD_DIM = 256
"""the largest head for which the tiles of attention on a GPU were chosen"""


@dataclass(frozen=True)
class TransformersArchitecture:
    """An `Architecture` of transformers."""

    config: TransformersConfig
    original: PreTrainedConfig
    needs_chunk_check: ClassVar = True

    @staticmethod
    def open(model: Path, pools: bool = False) -> TransformersArchitecture:
        """Reads config.json. Raises ConfigError with the reason for a model that can't be served. pools: the
        head is not used"""
        return TransformersArchitecture(*describe(model, pools))

    @property
    def dtype(self) -> str | None:
        return self.config.dtype

    def check(self, checkpoint: Checkpoint, choose: ChooseFormat) -> Collection[str]:
        return WeightPlan(self._empty, self.config, checkpoint).check(checkpoint, choose)

    def projections(self, checkpoint: Checkpoint) -> Sequence[Projection]:
        plan = WeightPlan(self._empty, self.config, checkpoint)
        of_experts = chain.from_iterable(chain.from_iterable(plan.experts.values()))
        return [*plan.projections.values(), *of_experts]

    def take_part(self, rank: Rank) -> TransformersConfig:
        refuse_parts(rank, f"{self.original.model_type} is computed by transformers")
        return self.config

    def check_options(self, device: torch.device, deterministic: bool) -> None:
        heads = sorted({(call.heads, call.kv_heads) for call in self.config.calls})
        if device.type == "cuda" and len(heads) > 1:
            raise ConfigError(
                f"--device cuda: the layers of {self.original.model_type} have {heads} query and KV heads. "
                "Only --device cpu serves layers with different numbers."
            )
        head_dim = self.config.cache_spec.head_dim
        if device.type == "cuda" and head_dim > MAX_CUDA_HEAD_DIM:
            raise ConfigError(
                f"--device cuda: {self.original.model_type} has heads of {head_dim} numbers, but the kernels "
                f"are made for at most {MAX_CUDA_HEAD_DIM}. Use --device cpu."
            )
        if deterministic:
            raise ConfigError(
                f"--deterministic: {self.original.model_type} is computed by transformers, whose results "
                "depend on the other rows of a step. Leave the option out."
            )

    def load(self, loader: ProjectionLoader, progress: Callable[[str], None]) -> Model:
        with without_weights(loader.device):
            model = build(copy.deepcopy(self.original), loader.dtype)
        load_into(model, WeightPlan(model, self.config, loader.checkpoint), loader, progress)
        return TransformersModel(self.config, model, loader.dtype, loader.device)

    @cached_property
    def _empty(self) -> PreTrainedModel:
        with torch.device("meta"):
            return build(copy.deepcopy(self.original), torch.bfloat16)


@contextmanager
def without_weights(device: torch.device) -> Iterator[None]:
    """Context in which modules get parameters without memory, but buffers on the device."""
    register = torch.nn.Module.register_parameter

    def register_on_meta(module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> None:
        meta = None if parameter is None else torch.nn.Parameter(parameter.to("meta"), requires_grad=False)
        register(module, name, meta)

    torch.nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign, assignment]
    try:
        with no_init_weights(), device:
            yield
    finally:
        torch.nn.Module.register_parameter = register  # type: ignore[method-assign]


def _find_embedding(model: PreTrainedModel, weight_readers: Collection[str]) -> str | None:
    """The name of the embedding's weight, if only the embedding's own code reads it."""
    embedding = model.get_input_embeddings()
    name = next((name for name, module in model.named_modules() if module is embedding), None)
    is_plain = isinstance(embedding, torch.nn.Embedding) and name not in weight_readers
    return f"{name}.weight" if is_plain else None


def _of_expert(names: tuple[str, ...], shape: tuple[int, ...], is_transposed: bool) -> tuple[Projection, ...]:
    """An expert's projections, whose outputs together are those of the stacked weight."""
    inputs, outputs = shape[1:] if is_transposed else shape[:0:-1]
    return tuple(Projection(name, outputs // len(names), inputs) for name in names)


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    outputs, inputs = shape
    return outputs, inputs


class UsedParts(Protocol):
    """See `TransformersConfig`."""

    @property
    def weight_readers(self) -> tuple[str, ...]: ...

    @property
    def unused(self) -> tuple[str, ...]: ...


class WeightPlan:
    """Where each weight of a model comes from."""

    def __init__(self, model: PreTrainedModel, config: UsedParts, checkpoint: Checkpoint) -> None:
        self.place = checkpoint.files[0].parent
        skipped = tuple(f"{name}." for name in config.unused)
        wanted = {name: each for name, each in model.state_dict().items() if not name.startswith(skipped)}
        self.shapes = {name: tuple(tensor.shape) for name, tensor in wanted.items()}
        self.sources = find_sources(model, wanted, checkpoint)
        self.tied: Mapping[str, str] = model.all_tied_weights_keys
        for target, source in self.tied.items():
            if source not in self.sources and target in self.sources:  # either may be the one that is stored
                self.sources[source] = self.sources.pop(target)
        linears = {name for name in find_linears(model) if f"{name}.weight" in wanted}
        linears -= set(config.weight_readers)
        self.linears = {f"{name}.weight": name for name in linears}
        """the names of linear modules by those of their weights"""
        self.projections: dict[str, Projection] = {}
        """the matrices that are stored as such, by the names of their weights: of linear modules, and the
        embedding"""
        self.embedding = _find_embedding(model, config.weight_readers)
        for target, source in self.sources.items():
            if target in self.tied or source.converter is not None:
                continue
            if target in self.linears:
                biased = f"{self.linears[target]}.bias" in self.shapes
                self.projections[target] = Projection(
                    source.projection, *_matrix(self.shapes[target]), biased
                )
            elif target == self.embedding:
                shape = _matrix(self.shapes[target])
                self.projections[target] = Projection(source.projection, *shape, kind="Embedding")
        self.experts: dict[str, list[tuple[Projection, ...]]] = {}
        """the projections of each expert, by the names of the modules' stacked weights"""
        for target, source in self.sources.items():
            module = model.get_submodule(target.rpartition(".")[0])
            if is_experts(module) and not module.has_bias and (experts := source.find_experts()):
                shape, is_transposed = self.shapes[target], bool(module.is_transposed)
                self.experts[target] = [_of_expert(names, shape, is_transposed) for names in experts]
        self.tied_head = self._find_tied_head()
        """the weight of the head that is the embedding's; None if the weight is not theirs alone"""
        if self.embedding is not None and self.tied_head is None and self.embedding in self.tied.values():
            self.projections.pop(self.embedding, None)  # other modules read its weight

    def _find_tied_head(self) -> str | None:
        sharing = [target for target, source in self.tied.items() if source == self.embedding]
        if len(sharing) != 1 or self.embedding not in self.projections or sharing[0] not in self.linears:
            return None
        (head,) = sharing
        return None if f"{self.linears[head]}.bias" in self.shapes else head

    def is_bias(self, target: str) -> bool:
        """Whether a tensor is loaded together with a matrix."""
        return target.endswith(".bias") and f"{target.removesuffix('.bias')}.weight" in self.projections

    def check(self, checkpoint: Checkpoint, choose: ChooseFormat) -> Collection[str]:
        """As `Architecture.check`."""
        expected = self.describe_tensors(choose)
        checkpoint.check(expected, has_others=True)
        return {*expected, *chain.from_iterable(source.names for source in self.sources.values())}

    def describe_tensors(self, choose: ChooseFormat) -> dict[str, TensorSpec]:
        """The tensors of the checkpoint, but for those that are converted."""
        expected: dict[str, TensorSpec] = {}
        has_converted = False
        for target, source in self.sources.items():
            if target in self.experts:
                stored, wanted = len(self.experts[target]), self.shapes[target][0]
                if stored != wanted:
                    raise ConfigError(
                        f"{self.place}: {target} needs {wanted} experts, but {stored} are stored."
                    )
                for projection in chain.from_iterable(self.experts[target]):
                    expected |= projection_tensors(projection, choose)
            elif source.converter is not None:
                has_converted = True
            elif target in self.projections:
                expected |= projection_tensors(self.projections[target], choose)
            elif not self.is_bias(target) and target not in self.tied:
                expected[source.names[0]] = TensorSpec((self.shapes[target],))
        for target, shape in self.shapes.items():
            is_stored = target not in self.sources and target not in self.tied and not self.is_bias(target)
            if is_stored and not has_converted:
                expected[target] = TensorSpec((shape,))
        return expected


def load_into(
    model: PreTrainedModel, plan: WeightPlan, loader: ProjectionLoader, progress: Callable[[str], None]
) -> None:
    """Puts a checkpoint's weights into a model that has none."""
    _Loading(model, plan, loader, progress).run()


class _Loading:
    """Puts a checkpoint's weights into a model that has none."""

    def __init__(
        self,
        model: PreTrainedModel,
        plan: WeightPlan,
        loader: ProjectionLoader,
        progress: Callable[[str], None],
    ) -> None:
        self._model, self._plan, self._loader, self._progress = model, plan, loader, progress
        self._products: dict[str, list[Linear]] = {}
        """the experts' products by the names of the stacked weights"""

    def run(self) -> None:
        plan = self._plan
        for done, (target, source) in enumerate(plan.sources.items(), start=1):
            if target == plan.embedding and target in plan.projections:
                self._set_embedding(target)
            elif target in plan.projections:
                self._set_product(target, self._loader.load_linear(plan.projections[target]))
            elif target in plan.experts and self._has_products(target):
                self._load_experts(target)
            elif source.converter is not None:
                for name, tensor in self._convert(target, source).items():
                    self._set(name, tensor, is_mapped=False)
            elif not plan.is_bias(target) and target not in plan.tied:
                self._set(target, self._loader.checkpoint.read(source.names[0]), is_mapped=True)
            self._progress(f"loading weights: {done} of {len(plan.sources)} tensors")
        self._tie()
        for name, module in self._model.named_modules():
            if is_experts(module):
                self._set_experts(name, module)
        self._pack_others()
        for name, tensor in self._model.state_dict().items():
            if tensor.is_meta and name in plan.shapes:
                raise ConfigError(f"{plan.place}: tensor {name} {list(tensor.shape)} is missing.")

    def _has_products(self, target: str) -> bool:
        """Whether each expert gets a product. A GPU multiplies by stacked floats of all experts at once."""
        owner = target.rpartition(".")[0]
        of_module = [
            experts for name, experts in self._plan.experts.items() if name.rpartition(".")[0] == owner
        ]
        formats = [self._loader.choose(experts[0][0]) for experts in of_module]
        return self._loader.device.type == "cpu" or not all(isinstance(each, FloatFormat) for each in formats)

    def _load_experts(self, target: str) -> None:
        experts = self._plan.experts[target]
        self._products[target] = [self._loader.load_linear(*projections) for projections in experts]

    def _set_experts(self, name: str, module: torch.nn.Module) -> None:
        """Gives an experts module its products: those that were loaded, or on a CPU its stacked weights'."""
        first = next((f"{name}.{each}" for each in FIRST if f"{name}.{each}" in self._products), None)
        if first is not None:
            set_products(module, self._products[first], self._products[f"{name}.{SECOND}"])
        elif self._loader.device.type == "cpu":
            pack_stacked(module)

    def _convert(self, target: str, source: Source) -> dict[str, torch.Tensor]:
        """The weights that transformers' converter makes."""
        assert source.converter is not None
        quantized = [name for name in source.names if QUANTIZED_PART.search(name)]
        if quantized:
            label = self._loader.checkpoint.label(quantized[0])
            raise ConfigError(
                f"{label} is quantized, and {target}, which is made of it, must not be. Use a checkpoint in "
                "16 bits."
            )
        made = source.converter.convert(target, model=self._model, config=self._model.config)
        return {name: value[0] if isinstance(value, list) else value for name, value in made.items()}

    def _set(self, target: str, tensor: torch.Tensor, is_mapped: bool) -> None:
        """is_mapped: the tensor is a view of the checkpoint's file"""
        shape = self._plan.shapes.get(target)
        if tuple(tensor.shape) != shape:
            raise ConfigError(
                f"{self._plan.place}: tensor {target}: expected {list(shape or ())}, got "
                f"{list(tensor.shape)}."
            )
        owner, _, name = target.rpartition(".")
        module = self._model.get_submodule(owner)
        placed = module._parameters.get(name)
        if placed is None:
            buffer = module._buffers[name]
            assert buffer is not None
            buffer.copy_(tensor)
        else:
            tensor = tensor.to(self._loader.device, placed.dtype, copy=is_mapped)
            module._parameters[name] = torch.nn.Parameter(tensor, requires_grad=False)

    def _set_embedding(self, target: str) -> None:
        projection, head = self._plan.projections[target], self._plan.tied_head
        if head is not None:
            rows, product = self._loader.load_rows_and_head(projection)
            self._set_product(head, product)
        elif isinstance(self._loader.choose(projection), FloatFormat):
            self._set(target, self._loader.checkpoint.read(f"{projection.name}.weight"), is_mapped=True)
            return
        else:
            rows = self._loader.load_rows(projection)
        StoredEmbedding.replace(self._model, target.removesuffix(".weight"), rows)

    def _pack_others(self) -> None:
        """Turns the linear modules whose weights were made or are shared into products."""
        for target, name in self._plan.linears.items():
            module = self._model.get_submodule(name)
            if isinstance(module, torch.nn.Linear) and not module.weight.is_meta:
                bias = None if module.bias is None else module.bias.data
                self._set_product(target, Linear.pack(module.weight.data.contiguous(), bias))

    def _set_product(self, target: str, product: Linear) -> None:
        self._model.set_submodule(self._plan.linears[target], LinearModule(product))

    def _tie(self) -> None:
        """Gives modules that share the weight of another one that weight."""
        for target, source in self._plan.tied.items():
            if target != self._plan.tied_head and target in self._plan.shapes:
                owner, _, name = target.rpartition(".")
                shared = self._model.get_submodule(source.rpartition(".")[0])
                if isinstance(shared, LinearModule):
                    self._model.set_submodule(owner, shared)
                else:
                    self._model.get_submodule(owner)._parameters[name] = self._model.get_parameter(source)
