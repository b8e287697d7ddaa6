"""Llama 4's layers with two changes: tokens go through their own experts alone, and queries are scaled by the
positions of their tokens. Transformers' code multiplies all tokens by all experts, and counts the tokens of a
step, which has several rows."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.core_model_loading import Concatenate, MergeModulelist, Transpose, WeightConverter
from transformers.models.llama4.modeling_llama4 import (
    Llama4TextDecoderLayer,
    Llama4TextExperts,
    Llama4TextMoe,
)

from .experts import run_experts


def replace_llama4(model: PreTrainedModel) -> None:
    """Gives the model's layers the classes below."""
    for module in model.modules():
        if type(module) in _REPLACED:
            module.__class__ = _REPLACED[type(module)]


def find_converters(model: PreTrainedModel) -> list[WeightConverter]:
    """The converters of tensors that belong to one expert, as GGUF files and quantized checkpoints have them.
    Transformers has none, because its own checkpoints have stacked ones."""
    if not any(isinstance(module, _Experts) for module in model.modules()):
        return []
    experts = "feed_forward.experts"
    parts = [f"{experts}.*.{part}.weight" for part in ("gate_proj", "up_proj")]
    merge, transpose = MergeModulelist(dim=0), Transpose(1, 2)
    return [
        WeightConverter(parts, f"{experts}.gate_up_proj", operations=[merge, Concatenate(dim=1), transpose]),
        WeightConverter(
            f"{experts}.*.down_proj.weight", f"{experts}.down_proj", operations=[merge, transpose]
        ),
    ]


class _Experts(Llama4TextExperts):  # type: ignore[misc]
    """Experts with the attributes of those that call transformers' experts interface."""

    has_gate = is_transposed = is_concatenated = True
    has_bias = has_post_expert_norm = _is_expert_parallel = False

    def _apply_gate(self, gate_and_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_and_up.chunk(2, dim=-1)
        gated: torch.Tensor = self.act_fn(gate) * up
        return gated

    def forward(self, hidden: torch.Tensor, experts: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        results: torch.Tensor = run_experts(self, hidden, experts, shares)
        return results


class _SparseLayer(Llama4TextMoe):  # type: ignore[misc]
    """A feed-forward layer that computes only the experts that the router chose. Their scores are factors of
    their inputs, so a token has another input for each of its experts."""

    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = hidden_states.reshape(-1, self.hidden_dim)
        scores, logits = self.router(rows)
        scores, experts = scores.topk(self.top_k, dim=1)  # the scores of experts that were not chosen are 0
        inputs = (rows[:, None] * scores[:, :, None]).flatten(0, 1)
        results = self.experts(inputs, experts.reshape(-1, 1), torch.ones_like(scores).reshape(-1, 1))
        routed = results.unflatten(0, experts.shape).sum(dim=1)
        return self.shared_expert(rows) + routed, logits


class _DecoderLayer(Llama4TextDecoderLayer):  # type: ignore[misc]
    """A layer whose attention scales queries by the positions of their tokens."""

    def forward(self, hidden_states: torch.Tensor, position_ids: torch.Tensor, **others: Any) -> Any:
        others["cache"] = _Positions(position_ids[0])
        return super().forward(hidden_states, position_ids=position_ids, **others)


class _Positions:
    """Stands in place of transformers' cache. Attention adds a token's number in the step to its length."""

    def __init__(self, positions: torch.Tensor) -> None:
        """positions: [tokens]"""
        self._before = positions - torch.arange(len(positions), device=positions.device)

    def get_seq_length(self, layer: int) -> torch.Tensor:
        """How many positions before each token are not in the step. int64 [tokens]"""
        return self._before

    def update(self, keys: torch.Tensor, values: torch.Tensor, *_: Any, **__: Any) -> Any:
        return keys, values


_REPLACED: dict[type[torch.nn.Module], type[torch.nn.Module]] = {
    Llama4TextDecoderLayer: _DecoderLayer,
    Llama4TextExperts: _Experts,
    Llama4TextMoe: _SparseLayer,
}
