"""The forward pass of a decoder-only transformer over paged keys and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ...kernels.activation import silu_and_mul
from ...kernels.attention import paged_attention
from ...kernels.common.rows import take_rows
from ...kernels.linear import Linear, as_float32
from ...kernels.norm import add_rms_norm, rms_norm
from ...kernels.rotary import rotary_write_kv
from .decoder_config import DecoderConfig
from .input_batch import InputBatch
from .rope import RotaryTable
from .weights import DecoderWeights, LayerWeights


class Decoder:
    """`batch_invariant`: see `paged_attention`; `weights` are loaded with the same.
    `progress` is called after each layer.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        rotary: RotaryTable,
        batch_invariant: bool = False,
    ) -> None:
        self._config = config
        self._weights = weights
        self._rotary = rotary
        self._batch_invariant = batch_invariant
        self._head_counts = (config.heads, config.kv_heads, config.kv_heads)
        self._scale = config.head_dim**-0.5
        self.progress: Callable[[], None] = lambda: None

    @property
    def head(self) -> Linear:
        """hidden → vocab; `logits` are its results as float32"""
        return self._weights.head

    @property
    def dtype(self) -> torch.dtype:
        """of hidden states"""
        return self._weights.norm.dtype

    def cover(self, positions: int) -> None:
        """Computes the rotary embeddings of the first `positions` positions. Call it before a step that has
        tokens there."""
        self._rotary.cover(positions)

    def forward(
        self,
        batch: InputBatch,
        kvs: Sequence[torch.Tensor],
        arrive: Callable[[int], None] | None = None,
    ) -> torch.Tensor:
        """Write the step's keys and values; return the hidden states of its output tokens.

        kvs: each layer's cache (see `kv_pool.allocate_pool`).
        arrive: called with a layer's number before its pages are read.
        Returns [output tokens, hidden], normalised for the head.
        """
        return self.run_layers(self.embed(batch.tokens), batch, kvs, arrive)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden] of token ids [tokens]"""
        return self._weights.embedding(tokens)

    def run_layers(
        self,
        residual: torch.Tensor,
        batch: InputBatch,
        kvs: Sequence[torch.Tensor],
        arrive: Callable[[int], None] | None = None,
    ) -> torch.Tensor:
        """As `forward`, of the embedded tokens in `residual` [tokens, hidden], which is overwritten."""
        layers, eps = self._weights.layers, self._config.rms_norm_eps
        normal = rms_norm(residual, layers[0].input_norm, eps)
        for index, layer in enumerate(layers):
            if arrive is not None:
                arrive(index)
            last = index + 1 == len(layers)
            q = self._write_kv(layer, normal, batch, kvs[index])
            if last and batch.outputs is not None and not batch.outputs.numel():
                return take_rows(residual, batch.outputs)
            attended = self._attention(q, batch, kvs[index], self._config.windows[index], last)
            if last and batch.outputs is not None:
                attended, residual = take_rows(attended, batch.outputs), take_rows(residual, batch.outputs)
            normal = add_rms_norm(layer.output(attended), residual, layer.post_attention_norm, eps)
            next_norm = self._weights.norm if last else layers[index + 1].input_norm
            normal = add_rms_norm(_feed_forward(layer, normal), residual, next_norm, eps)
            self.progress()
        return normal

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 [tokens, vocab] of hidden states [tokens, hidden]."""
        return as_float32(self._weights.head(hidden))

    def _write_kv(
        self, layer: LayerWeights, x: torch.Tensor, batch: InputBatch, kv: torch.Tensor
    ) -> torch.Tensor:
        """Writes the keys and values of x [tokens, hidden]; returns the queries [tokens, heads, head_dim]."""
        heads = layer.qkv(x).view(x.shape[0], -1, self._config.head_dim)
        q, k, v = torch.split_with_sizes(heads, self._head_counts, dim=1)
        rotary_write_kv(q, k, v, self._rotary.values, batch.positions, batch.places, kv, layer.head_norms)
        return q

    def _attention(
        self, q: torch.Tensor, batch: InputBatch, kv: torch.Tensor, window: int | None, outputs_only: bool
    ) -> torch.Tensor:
        """[tokens, heads × head_dim] from queries [tokens, heads, head_dim]"""
        attention, invariant = batch.attention, self._batch_invariant
        return paged_attention(q, kv, attention, self._scale, window, invariant, outputs_only).flatten(1)


def _feed_forward(layer: LayerWeights, x: torch.Tensor) -> torch.Tensor:
    return layer.down(silu_and_mul(layer.gate_up(x)))
