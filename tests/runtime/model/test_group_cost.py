"""What the model process tells the scheduler about the cost of groups."""

from __future__ import annotations

from pathlib import Path

import arbora
import pytest
import torch
from arbora.runtime.model.interface.cache_spec import CacheSpec
from arbora.runtime.model.loading import group_cost

BUILT_IN = Path(arbora.__file__).parent / "runtime" / "model" / "builtin"


@pytest.mark.parametrize(
    ("heads", "kv_heads", "on_cpu", "on_gpu"), [(16, 8, 8, 32), (32, 8, 4, 16), (8, 8, 16, 64), (80, 1, 1, 1)]
)
def test_queries_of_a_chunk_in_a_group_fit_into_a_vector_or_a_small_tile(
    heads: int, kv_heads: int, on_cpu: int, on_gpu: int
) -> None:
    spec = CacheSpec(heads, kv_heads, head_dim=64, windows=(None,))
    costs = [group_cost(spec, torch.bfloat16, torch.device(name)) for name in ("cpu", "cuda")]
    assert [cost.chunk_tokens for cost in costs] == [on_cpu, on_gpu]
