"""The interface of models: what executors, loading and the warm-up know of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch

from ....kernels.linear import Linear
from .cache_spec import CacheSpec
from .input_batch import InputBatch


class HiddenStates(NamedTuple):
    """What a layer gets and returns."""

    residual: torch.Tensor
    """[tokens, hidden]: the sum of all earlier layers' outputs; the next layer overwrites it"""
    normal: torch.Tensor
    """[tokens, hidden]: the residual, normalised for the next layer or for the head"""


@dataclass(frozen=True)
class LayerInputs:
    """What all layers of a forward pass read."""

    batch: InputBatch
    kvs: Sequence[torch.Tensor]
    """each layer's cache (see `kv_pool.allocate_pool`)"""
    rotary: Mapping[Hashable, torch.Tensor]
    """the rotary embeddings by `LayerConfig.rope`; see `RotaryTable.values`"""


class AdaptableProduct(NamedTuple):
    """A product to whose results adapters may add."""

    product: Linear
    parts: tuple[tuple[str, int], ...]
    """its modules' names in checkpoints, and their outputs, which follow each other"""


class Layer(Protocol):
    def forward(self, x: HiddenStates, step: LayerInputs) -> HiddenStates:
        """Computes the layer, and writes the keys and values of the step's tokens. The last layer
        returns only the states of the output tokens."""
        ...


class ModelConfig(Protocol):
    """What the sizes of the KV cache and of steps depend on."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def hidden_size(self) -> int: ...

    @property
    def intermediate_size(self) -> int: ...

    @property
    def max_positions(self) -> int:
        """the longest context that the positions allow, in tokens"""
        ...

    @property
    def default_positions(self) -> int:
        """the longest context without loss of quality, in tokens"""
        ...

    @property
    def cache_spec(self) -> CacheSpec: ...


class Model(Protocol):
    progress: Callable[[], None]
    """called after each layer"""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def is_recordable(self) -> bool:
        """Whether a step can be recorded and run again with other inputs: as a CUDA graph, or as a program of
        CPU kernels."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """dtype of hidden states"""
        ...

    def products(self) -> list[Linear]:
        """All matrix products of a step, the head last."""
        ...

    def adaptable_products(self) -> list[AdaptableProduct]:
        """The products that adapters may change. `forward` calls `select_rows` for them."""
        ...

    def set_context(self, positions: int) -> None:
        """Allocates what the model needs for sequences of at most `positions` tokens."""
        ...

    def cover(self, positions: int) -> None:
        """Prepares for steps with tokens at the first `positions` positions. Call it before such a step."""
        ...

    def forward(
        self,
        batch: InputBatch,
        kvs: Sequence[torch.Tensor],
        arrive: Callable[[int], None] | None = None,
    ) -> torch.Tensor:
        """Writes the step's keys and values; returns the hidden states of its output tokens.

        kvs: each layer's cache (see `kv_pool.allocate_pool`).
        arrive: called with a layer's number before its pages are read.
        Returns [output tokens, hidden], normalised for the head.
        """
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits, float32 [tokens, vocab], of hidden states [tokens, hidden]."""
        ...

    def describe_positions(self) -> bytes:
        """The part of the positions' computation on which the contents of pages depend."""
        ...


@runtime_checkable
class ClassifyingModel(Protocol):
    """A `Model` with a head of its own for classes."""

    def classify(self, hidden: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """Logits, float32 [inputs, classes], of the hidden states [tokens, hidden] of whole inputs, which lie
        one after the other."""
        ...
