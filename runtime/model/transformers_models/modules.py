"""Modules of ours in place of those of a model of transformers."""

from __future__ import annotations

import torch

from ....kernels.linear import Linear
from ..weight_formats import EmbeddingRows


class LinearModule(torch.nn.Module):
    """Our product in place of PyTorch's linear module."""

    def __init__(self, product: Linear) -> None:
        super().__init__()
        self.product = product
        self.in_features, self.out_features = product.in_features, product.out_features

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., in_features] → [..., out_features]"""
        rows = x.reshape(-1, self.in_features).contiguous()
        return self.product(rows).view(*x.shape[:-1], self.out_features)


class StoredEmbedding(torch.nn.Embedding):
    """An embedding whose rows are read from a product's weight, which is quantized or also the head's."""

    read_rows: EmbeddingRows

    @staticmethod
    def replace(model: torch.nn.Module, name: str, rows: EmbeddingRows) -> None:
        """Makes the embedding called `name` one."""
        module = model.get_submodule(name)
        assert isinstance(module, torch.nn.Embedding)
        kind, dtype = type(module), module.weight.dtype
        # A model's own class scales what the embedding returns: it calls `forward` of the class after it.
        bases = (StoredEmbedding,) if kind is torch.nn.Embedding else (kind, StoredEmbedding)
        module.__class__ = type(kind.__name__, bases, {})
        assert isinstance(module, StoredEmbedding)
        module.read_rows = rows
        module.weight = torch.nn.Parameter(torch.empty(0, dtype=dtype), requires_grad=False)  # for its dtype

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """input: token ids [...] → [..., embedding_dim]"""
        return self.read_rows(input.reshape(-1)).view(*input.shape, self.embedding_dim)
