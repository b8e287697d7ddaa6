"""The forward pass of a decoder-only transformer over paged keys and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ...kernels.adapters import select_rows
from ...kernels.attention import Reach, paged_attention
from ...kernels.common.rows import take_rows, to_float32
from ...kernels.elementwise import add_rms_norm, rms_norm, scale_and_cap
from ...kernels.linear import Linear
from ...kernels.rotary import rotary_write_kv
from .decoder_config import DecoderConfig
from .interface.input_batch import InputBatch
from .interface.model import AdaptableProduct, HiddenStates, Layer, LayerInputs
from .ranks import ONE_RANK, Ranks
from .rope import RotaryTable
from .weights import DecoderWeights, LayerWeights, layer_projections


class DecoderLayer:
    """Attention and a feed-forward layer, as a `LayerConfig` describes them."""

    def __init__(
        self,
        config: DecoderConfig,
        number: int,
        weights: LayerWeights,
        next_norm: torch.Tensor,
        batch_invariant: bool,
        ranks: Ranks,
    ) -> None:
        """next_norm: [hidden], the weights of the norm that follows the layer"""
        self._number, self._weights, self._next_norm = number, weights, next_norm
        self._config, self._eps = config.layers[number], config.rms_norm_eps
        self._is_last = number + 1 == len(config.layers)
        self._head_counts = (self._config.heads, self._config.kv_heads, self._config.kv_heads)
        self._batch_invariant, self._ranks = batch_invariant, ranks

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
            select_rows(step.batch.output_adapters)
        output_norm, added = weights.attention_output_norm, weights.output(attended)
        self._ranks.sum_in_place(added)
        normal = self._add(added, residual, output_norm, weights.mlp_norm)
        added = weights.feed_forward(normal)
        self._ranks.sum_in_place(added)
        normal = self._add(added, residual, weights.mlp_output_norm, self._next_norm)
        return HiddenStates(residual, normal)

    def _add(
        self,
        added: torch.Tensor,
        residual: torch.Tensor,
        output_norm: torch.Tensor | None,
        next_norm: torch.Tensor,
    ) -> torch.Tensor:
        """Adds a part's output to the residual; returns the next part's input."""
        multiplier = self._config.residual_multiplier
        return add_rms_norm(added, residual, next_norm, self._eps, multiplier, output_norm)

    def _write_kv(self, x: torch.Tensor, step: LayerInputs) -> torch.Tensor:
        """Writes the keys and values of x [tokens, hidden]; returns the queries [tokens, heads, head_dim]."""
        batch, kv = step.batch, step.kvs[self._number]
        heads = self._weights.qkv(x).view(x.shape[0], -1, self._config.head_dim)
        q, k, v = torch.split_with_sizes(heads, self._head_counts, dim=1)
        rotary, norms = step.rotary[self._config.rope], self._weights.head_norms
        places = batch.of_layer(self._number).places
        rotary_write_kv(q, k, v, rotary, batch.positions, places, kv, norms)
        return q

    def _attention(self, q: torch.Tensor, step: LayerInputs) -> torch.Tensor:
        """Attention, [tokens, heads × head_dim], of queries [tokens, heads, head_dim]."""
        kv, batch = step.kvs[self._number], step.batch.of_layer(self._number).attention
        config, invariant = self._config, self._batch_invariant
        reach = Reach(config.window)
        out = paged_attention(
            q,
            kv,
            batch,
            config.scale,
            reach,
            invariant,
            self._is_last,
            config.softcap,
            self._weights.sinks,
        )
        return out.flatten(1)


class Decoder:
    """A `Model` of the families in `runtime/families.py`."""

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        device: torch.device,
        dtype: torch.dtype,
        batch_invariant: bool = False,
        ranks: Ranks = ONE_RANK,
    ) -> None:
        """config: of this rank's part. dtype: of hidden states. batch_invariant: see `paged_attention`.
        `weights` are loaded with the same values."""
        self.config = config
        self._weights, self._device, self._dtype = weights, device, dtype
        self._ranks, self._head_widths = ranks, ranks.rank.divide(config.vocab_size)
        norms = [*(layer.attention_norm for layer in weights.layers[1:]), weights.norm]
        self._layers: list[Layer] = [
            DecoderLayer(config, number, layer, norm, batch_invariant, ranks)
            for number, (layer, norm) in enumerate(zip(weights.layers, norms, strict=True))
        ]
        self._head = weights.head
        # As transformers rounds it.
        self._embedding_multiplier = float(torch.tensor(config.embedding_multiplier, dtype=self.dtype))
        self.progress: Callable[[], None] = lambda: None
        self.set_context(1)

    @property
    def is_recordable(self) -> bool:
        on_cpu = self._device.type == "cpu"
        return on_cpu or all(layer.feed_forward.is_capturable for layer in self._weights.layers)

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    def products(self) -> list[Linear]:
        layers = [(each.qkv, each.output, *each.feed_forward.products) for each in self._weights.layers]
        return [*(product for layer in layers for product in layer), self._head]

    def adaptable_products(self) -> list[AdaptableProduct]:
        return [
            AdaptableProduct(product, tuple((each.name, each.outputs) for each in parts))
            for number, weights in enumerate(self._weights.layers)
            for product, parts in weights.name_products(layer_projections(self.config, number))
        ]

    def set_context(self, positions: int) -> None:
        ropes = dict.fromkeys(layer.rope for layer in self.config.layers)
        self._rotary = {rope: RotaryTable(rope, positions, self._device) for rope in ropes}

    def cover(self, positions: int) -> None:
        """Computes the rotary embeddings of the first `positions` positions."""
        for table in self._rotary.values():
            table.cover(positions)

    def describe_positions(self) -> bytes:
        self.cover(2)
        return b"".join(table.values[:2].cpu().numpy().tobytes() for table in self._rotary.values())

    def forward(
        self,
        batch: InputBatch,
        kvs: Sequence[torch.Tensor],
        arrive: Callable[[int], None] | None = None,
    ) -> torch.Tensor:
        select_rows(batch.adapters)
        residual = self._weights.embedding(batch.tokens)
        if self._embedding_multiplier != 1.0:
            residual = scale_and_cap(residual, self._embedding_multiplier)
        first_norm = self._weights.layers[0].attention_norm
        x = HiddenStates(residual, rms_norm(residual, first_norm, self.config.rms_norm_eps))
        step = LayerInputs(batch, kvs, {rope: table.values for rope, table in self._rotary.items()})
        for number, layer in enumerate(self._layers):
            if arrive is not None:
                arrive(number)
            x = layer.forward(x, step)
            self.progress()
        return x.normal

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        config = self.config
        logits = self._ranks.join_columns(self._head(hidden), self._head_widths)
        if config.logit_multiplier == 1.0 and config.logit_softcap is None:
            return to_float32(logits)
        return scale_and_cap(logits, config.logit_multiplier, config.logit_softcap, torch.float32)
