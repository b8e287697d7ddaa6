"""The experts function of the models of transformers."""

from __future__ import annotations

from typing import Any

import torch
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

NAME = "arbora"
"""the experts implementation's name in a model's config"""


def _run_experts(module: Any, hidden: torch.Tensor, experts: torch.Tensor, shares: torch.Tensor) -> Any:
    """As transformers calls it. On the meta device, where no token has an expert, only the shape counts."""
    if hidden.is_meta:
        return torch.empty_like(hidden)
    return ALL_EXPERTS_FUNCTIONS["grouped_mm"](module, hidden, experts, shares)


ALL_EXPERTS_FUNCTIONS.register(NAME, _run_experts)
