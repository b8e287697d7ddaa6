# mypy: disable-error-code="no-untyped-call"
"""Memory for the intermediate tensors of recorded programs."""

from __future__ import annotations

import math
import weakref
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ALIGNMENT = 64  # bytes
ALLOCATIONS = {torch.ops.aten.empty.memory_format, torch.ops.aten.empty_like.default}


class NotRecordableError(Exception):
    """A PyTorch operation would compute while calls of kernels are only recorded."""


class ReusedMemory(TorchDispatchMode):
    """Allocates new tensors in blocks that outlive them, as programs use their addresses later.

    When a tensor is freed, another one gets its block, because kernels run in the order of their recording.
    Programs that never run at the same time may share `blocks`. Operations other than views and `torch.empty`
    raise NotRecordableError.
    """

    def __init__(self, blocks: Blocks) -> None:
        super().__init__()
        self._blocks = blocks
        self._free = {size: list(some) for size, some in blocks.by_size.items()}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in ALLOCATIONS:
            described = func(*args, **{**kwargs, "device": "meta"})
            return self._allocate(tuple(described.shape), described.dtype)
        if not func.is_view:
            raise NotRecordableError(str(func))
        result = func(*args, **kwargs)
        # Operations such as `to` are declared as views, but are not always.
        if not _places(result) <= _places([*args, *kwargs.values()]):
            raise NotRecordableError(str(func))
        return result

    def _allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        wanted = max(ALIGNMENT, math.prod(shape) * dtype.itemsize)
        size = 1 << (wanted - 1).bit_length()
        free = self._free.setdefault(size, [])
        block = free.pop() if free else self._blocks.add(size)
        owner = block[:wanted]
        weakref.finalize(owner, free.append, block)  # the tensor's storage holds `owner`
        flat = torch.from_numpy(owner)[: math.prod(shape) * dtype.itemsize]
        return flat.view(dtype).view(shape)


def _places(values: Any) -> set[int]:
    """Where the storages of all tensors in a nested structure begin."""
    tensors = (value for value in tree_leaves(values) if isinstance(value, torch.Tensor))
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


class Blocks:
    """Blocks of memory, whose sizes are powers of two."""

    def __init__(self) -> None:
        self.by_size: defaultdict[int, list[NDArray[np.uint8]]] = defaultdict(list)

    def add(self, size: int) -> NDArray[np.uint8]:
        memory = np.empty(size + ALIGNMENT, np.uint8)
        lacking = -memory.ctypes.data % ALIGNMENT
        block = memory[lacking : lacking + size]
        self.by_size[size].append(block)
        return block

    @property
    def nbytes(self) -> int:
        return sum(size * len(some) for size, some in self.by_size.items())
