"""Host memory that a GPU may access directly."""

from __future__ import annotations

import mmap

import torch

PORTABLE_AND_MAPPED = 1 | 2
"""flags of `cudaHostRegister`"""


def host_memory(size: int, pinned: bool) -> torch.Tensor:
    """uint8 [size], zeros; `pinned` for CUDA devices. Raises RuntimeError or OSError if it cannot be
    allocated.

    PyTorch's own pinned memory would be rounded up to a power of two: 33 GiB would take 64.
    """
    memory = torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)
    if pinned:
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        torch.cuda.check_error(runtime.cudaHostRegister(memory.data_ptr(), size, PORTABLE_AND_MAPPED))
    return memory
