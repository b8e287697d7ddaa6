"""A model of transformers as a `Model`: its attention reads and writes our pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from transformers import DynamicCache, PreTrainedModel

from ....kernels.adapters import select_rows
from ....kernels.attention import paged_attention
from ....kernels.common.rows import to_float32
from ....kernels.linear import Linear
from ....kernels.pages.cells import CellFormat
from ....kernels.rotary import rotary_write_kv
from ..interface.input_batch import InputBatch
from ..interface.model import AdaptableProduct
from .attention_calls import AttentionCall, handled_by
from .description import TransformersConfig
from .modules import LinearModule
from .recurrent_layers import StepStates
from .split_model import SplitModel


class TransformersModel:
    """A `Model` whose layers are transformers' modules."""

    def __init__(
        self, config: TransformersConfig, model: PreTrainedModel, dtype: torch.dtype, device: torch.device
    ) -> None:
        """model: with its weights loaded; dtype: of hidden states"""
        self.config, self._model = config, SplitModel(model)
        self._dtype = dtype
        self._cache = DynamicCache(config=model.config.get_text_config(decoder=True))
        # Rotates two dimensions by an angle of 0: keys come rotated.
        self.no_rotation = torch.tensor([[1.0, 0.0]], device=device)
        self.progress: Callable[[], None] = lambda: None

    @property
    def is_recordable(self) -> bool:
        """A CUDA graph can have PyTorch's kernels, but the host may not divide tokens by experts."""
        has_products = any(hasattr(module, "expert_products") for module in self._model.modules())
        has_states = bool(self.config.state_calls)
        return self.no_rotation.is_cuda and not (has_products or has_states)

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    def products(self) -> list[Linear]:
        return [module.product for module in self._model.modules() if isinstance(module, LinearModule)]

    def adaptable_products(self) -> list[AdaptableProduct]:
        return [
            AdaptableProduct(module.product, ((name, module.out_features),))
            for name, module in self._model.name_modules_of_tokens()
            if isinstance(module, LinearModule)
        ]

    def set_context(self, positions: int) -> None:
        pass

    def cover(self, positions: int) -> None:
        pass

    def describe_positions(self) -> bytes:
        return self.config.source.encode()

    def forward(
        self,
        batch: InputBatch,
        kvs: Sequence[torch.Tensor],
        arrive: Callable[[int], None] | None = None,
    ) -> torch.Tensor:
        select_rows(batch.adapters)
        attention = _PagedAttention(self, batch, kvs, arrive)
        with handled_by(attention), self._handle_states(batch) as cache:
            hidden = self._model.hidden(batch.tokens, batch.positions, **cache)
        return hidden if batch.outputs is None else hidden[batch.outputs]

    def _handle_states(self, batch: InputBatch) -> AbstractContextManager[dict[str, Any]]:
        calls = self.config.state_calls
        if not calls:
            return nullcontext({"use_cache": False})
        states = StepStates(calls, self._cache, batch)
        return self._model.recurrent.handled_by(states)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return to_float32(self._model.logits(hidden).contiguous())


class _PagedAttention:
    """The attention of one forward pass."""

    def __init__(
        self,
        model: TransformersModel,
        batch: InputBatch,
        kvs: Sequence[torch.Tensor],
        arrive: Callable[[int], None] | None,
    ) -> None:
        self._batch, self._kvs, self._arrive = batch, kvs, arrive
        self._no_rotation, self._progress = model.no_rotation, model.progress
        self._no_positions = torch.zeros_like(batch.positions)
        self._layer = 0

    def attend(
        self,
        call: AttentionCall,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        kv, batch = self._kvs[self._layer][:, : call.kv_heads], self._batch.of_layer(self._layer)
        if self._arrive is not None:
            self._arrive(self._layer)
        self._layer += 1
        head_dim = CellFormat(kv.dtype).head_dim(kv.shape[4])
        queries, keys, values = (_by_token(each, head_dim) for each in (q, k, v))
        rotary_write_kv(queries, keys, values, self._no_rotation, self._no_positions, batch.places, kv)
        sinks = None if sinks is None else sinks.float().contiguous()
        out = paged_attention(
            queries, kv, batch.attention, call.scale, call.reach, softcap=call.softcap, sinks=sinks
        )
        self._progress()
        return out[None, :, :, : call.value_dim]


def _by_token(x: torch.Tensor, head_dim: int) -> torch.Tensor:
    """x [1, heads, tokens, size] → [tokens, heads, head_dim], contiguous, with zeros at the end."""
    rows = x[0].transpose(0, 1)
    if rows.shape[2] < head_dim:
        return F.pad(rows, (0, head_dim - rows.shape[2]))
    return rows.reshape(len(rows), -1).view(rows.shape)  # sets the strides of dimensions of size 1 too
