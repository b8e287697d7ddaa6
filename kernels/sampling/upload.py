"""One transfer for many small arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

ALIGNMENT = 16


def upload(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[torch.Tensor]:
    """Tensors on device with the dtypes and shapes of contiguous arrays, moved without a synchronisation."""
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    starts = np.cumsum([0, *(-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays)])
    packed = torch.empty(int(starts[-1]), dtype=torch.uint8, pin_memory=True)
    for start, array in zip(starts, arrays, strict=False):
        packed[start : start + array.nbytes] = torch.from_numpy(array.reshape(-1).view(np.uint8))
    moved = packed.to(device, non_blocking=True)
    return [
        moved[start : start + array.nbytes].view(torch.from_numpy(array[:0]).dtype).view(array.shape)
        for start, array in zip(starts, arrays, strict=False)
    ]
