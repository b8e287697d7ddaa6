"""The forward pass of a decoder-only transformer over paged keys and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ...kernels.attention import paged_attention
from ...kernels.common.rows import take_rows
from ...kernels.elementwise import add_rms_norm, rms_norm, silu_and_mul
from ...kernels.linear import Linear, as_float32
from ...kernels.rotary import rotary_write_kv
from .decoder_config import DecoderConfig
from .interface.input_batch import InputBatch
from .interface.model import HiddenStates, Layer, LayerInputs
from .rope import RotaryTable
from .weights import DecoderWeights, LayerWeights


class DecoderLayer:
    """Attention and a gated SiLU feed-forward layer."""

    def __init__(
        self,
        config: DecoderConfig,
        number: int,
        weights: LayerWeights,
        next_norm: torch.Tensor,
        batch_invariant: bool,
    ) -> None:
        """next_norm: [hidden], the weights of the norm that follows the layer"""
        self._number, self._weights, self._next_norm = number, weights, next_norm
        self._is_last = number + 1 == config.layers
        self._window, self._eps = config.windows[number], config.rms_norm_eps
        self._head_dim, self._scale = config.head_dim, config.head_dim**-0.5
        self._head_counts = (config.heads, config.kv_heads, config.kv_heads)
        self._batch_invariant = batch_invariant

    def forward(self, x: HiddenStates, step: LayerInputs) -> HiddenStates:
        weights, residual = self._weights, x.residual
        outputs = step.batch.outputs if self._is_last else None
        q = self._write_kv(x.normal, step)
        if outputs is not None and not outputs.numel():
            nothing = take_rows(residual, outputs)
            return HiddenStates(nothing, nothing)
        attended = self._attention(q, step)
        if outputs is not None:
            attended, residual = take_rows(attended, outputs), take_rows(residual, outputs)
        normal = add_rms_norm(weights.output(attended), residual, weights.post_attention_norm, self._eps)
        added = weights.down(silu_and_mul(weights.gate_up(normal)))
        return HiddenStates(residual, add_rms_norm(added, residual, self._next_norm, self._eps))

    def _write_kv(self, x: torch.Tensor, step: LayerInputs) -> torch.Tensor:
        """Writes the keys and values of x [tokens, hidden]; returns the queries [tokens, heads, head_dim]."""
        batch, kv = step.batch, step.kvs[self._number]
        heads = self._weights.qkv(x).view(x.shape[0], -1, self._head_dim)
        q, k, v = torch.split_with_sizes(heads, self._head_counts, dim=1)
        places = batch.of_layer(self._number).places
        rotary_write_kv(q, k, v, step.rotary, batch.positions, places, kv, self._weights.head_norms)
        return q

    def _attention(self, q: torch.Tensor, step: LayerInputs) -> torch.Tensor:
        """Attention, [tokens, heads × head_dim], of queries [tokens, heads, head_dim]."""
        kv, batch = step.kvs[self._number], step.batch.of_layer(self._number).attention
        window, invariant = self._window, self._batch_invariant
        return paged_attention(q, kv, batch, self._scale, window, invariant, self._is_last).flatten(1)


class Decoder:
    """A `Model` of the families in `runtime/families.py`."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        device: torch.device,
        batch_invariant: bool = False,
    ) -> None:
        """batch_invariant: see `paged_attention`. `weights` are loaded with the same value."""
        self.config = config
        self._weights, self._device = weights, device
        norms = [*(layer.input_norm for layer in weights.layers[1:]), weights.norm]
        self._layers: list[Layer] = [
            DecoderLayer(config, number, layer, norm, batch_invariant)
            for number, (layer, norm) in enumerate(zip(weights.layers, norms, strict=True))
        ]
        self._head = weights.head
        self.progress: Callable[[], None] = lambda: None
        self.set_context(1)

    @property
    def is_recordable(self) -> bool:
        return True

    @property
    def dtype(self) -> torch.dtype:
        return self._weights.norm.dtype

    def products(self) -> list[Linear]:
        layers = [(each.qkv, each.output, each.gate_up, each.down) for each in self._weights.layers]
        return [*(product for layer in layers for product in layer), self._head]

    def set_context(self, positions: int) -> None:
        self._rotary = RotaryTable(self.config.rope, positions, self._device)

    def cover(self, positions: int) -> None:
        """Computes the rotary embeddings of the first `positions` positions."""
        self._rotary.cover(positions)

    def describe_positions(self) -> bytes:
        self._rotary.cover(2)
        return self._rotary.values[:2].cpu().numpy().tobytes()

    def forward(
        self,
        batch: InputBatch,
        kvs: Sequence[torch.Tensor],
        arrive: Callable[[int], None] | None = None,
    ) -> torch.Tensor:
        residual = self._weights.embedding(batch.tokens)
        first_norm = self._weights.layers[0].input_norm
        x = HiddenStates(residual, rms_norm(residual, first_norm, self.config.rms_norm_eps))
        step = LayerInputs(batch, kvs, self._rotary.values)
        for number, layer in enumerate(self._layers):
            if arrive is not None:
                arrive(number)
            x = layer.forward(x, step)
            self.progress()
        return x.normal

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return as_float32(self._head(hidden))
