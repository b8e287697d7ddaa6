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
EMPTY, EMPTY_LIKE = torch.ops.aten.empty.memory_format, torch.ops.aten.empty_like.default
VIEWS = {torch.ops.aten.view.default, torch.ops.aten.split_with_sizes.default}
"""common operations that always return views"""


class NotRecordableError(Exception):
    """A PyTorch operation would compute while calls of kernels are only recorded."""


class ReusedMemory(TorchDispatchMode):
    """Allocates new tensors in blocks that outlive them, as programs use their addresses later.

    When a tensor is freed, another one gets its block, because kernels run in the order of their recording.
    Programs that never run at the same time may share `blocks`. Operations other than views and `torch.empty`
    raise NotRecordableError.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Tells PyTorch that nothing here is compiled: otherwise it imports its compiler with the first
        operation, which takes a second and 140 MB."""
        return False

    def __init__(self, blocks: Blocks) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._blocks = blocks
        self._free = {size: list(some) for size, some in blocks.by_size.items()}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is EMPTY:
            return self._allocate(args[0], kwargs.get("dtype") or torch.get_default_dtype())
        if func is EMPTY_LIKE:
            return self._allocate(args[0].shape, kwargs.get("dtype") or args[0].dtype)
        if func in VIEWS:
            return func(*args, **kwargs)
        if not func.is_view:
            raise NotRecordableError(str(func))
        result = func(*args, **kwargs)
        # Operations such as `to` are declared as views, but are not always.
        if not _places(result) <= _places([*args, *kwargs.values()]):
            raise NotRecordableError(str(func))
        return result

    def _allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        needed = math.prod(shape) * dtype.itemsize
        if needed == 0:
            return torch.empty(shape, dtype=dtype)
        wanted = max(ALIGNMENT, needed)
        size = 1 << (wanted - 1).bit_length()
        free = self._free.setdefault(size, [])
        block = free.pop() if free else self._blocks.add(size)
        owner = block[:wanted]
        weakref.finalize(owner, free.append, block)  # the tensor's storage holds `owner`
        return torch.frombuffer(owner, dtype=dtype, count=needed // dtype.itemsize).view(shape)


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
