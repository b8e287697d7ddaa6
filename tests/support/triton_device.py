"""The CUDA path on `DEVICE`: a GPU, or CPU tensors in Triton's interpreter."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
import torch
from arbora.runtime.model import kv_pool
from interpreted_triton import DEVICE

__all__ = ["DEVICE", "cache_as_on_a_gpu", "moved", "triton_kernels"]


@pytest.fixture(autouse=True, scope="module")
def cache_as_on_a_gpu() -> Iterator[None]:
    """Models that a test module loads on a CPU get a cache that CUDA kernels can read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv_pool, "in_segments", lambda device: False)
        yield


@contextmanager
def triton_kernels() -> Iterator[None]:
    """All operations on tensors of DEVICE run their Triton kernels."""
    with pytest.MonkeyPatch.context() as patch:
        if DEVICE.type == "cpu":
            patch.setattr(torch.Tensor, "is_cuda", True)
        yield


def moved(value: Any, device: torch.device = DEVICE) -> Any:
    """The same with all tensors on a device, in dataclasses and tuples too."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, tuple):
        return tuple(moved(part, device) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: moved(getattr(value, f.name), device) for f in fields(value)})
    return value
