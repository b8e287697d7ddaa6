"""The norms of query and key heads in some models (Qwen3)."""

from typing import NamedTuple

import torch


class HeadNorms(NamedTuple):
    """RMS norms over each head, with a weight [head_dim] for queries and one for keys."""

    q: torch.Tensor
    k: torch.Tensor
    eps: float
