"""Modules of ours in place of those of a model of transformers."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ....kernels.linear import Linear


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
    """An embedding that reads its weight from the product of the head that is tied to it, so that memory has
    the weight once."""

    read_rows: Callable[[torch.Tensor], torch.Tensor]

    @staticmethod
    def replace(model: torch.nn.Module, name: str, head: LinearModule) -> None:
        """Makes the module called `name` one, if it is an embedding and the product can be read."""
        module, rows = model.get_submodule(name), head.product.stored_rows()
        if rows is None or not isinstance(module, torch.nn.Embedding):
            return
        kind = type(module)
        # A model's own class scales what the embedding returns: it calls `forward` of the class after it.
        bases = (StoredEmbedding,) if kind is torch.nn.Embedding else (kind, StoredEmbedding)
        module.__class__ = type(kind.__name__, bases, {})
        assert isinstance(module, StoredEmbedding)
        module.read_rows = rows
        module.weight = torch.nn.Parameter(module.weight.new_empty(0), requires_grad=False)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """input: token ids [...] → [..., embedding_dim]"""
        return self.read_rows(input.reshape(-1)).view(*input.shape, self.embedding_dim)
