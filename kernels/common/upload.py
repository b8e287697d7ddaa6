"""One transfer for many small arrays."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

ALIGNMENT = 16


def upload(arrays: Sequence[NDArray[Any]], device: torch.device) -> list[torch.Tensor]:
    """Tensors on device with the dtypes and shapes of contiguous arrays, moved without a synchronisation."""
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    return _views(_pack(arrays, device).to(device, non_blocking=True), arrays)


class FixedArrays:
    """Named arrays at fixed device addresses, which one transfer sets.

    defaults: their dtypes and shapes, and the values of elements that are not set
    """

    def __init__(self, defaults: Mapping[str, NDArray[Any]], device: torch.device) -> None:
        arrays = list(defaults.values())
        packed = _pack(arrays, device)
        self._pinned = device.type != "cpu"
        self._defaults = packed.numpy().copy()
        self._capacity = {name: len(array) for name, array in defaults.items()}
        self._record = np.dtype(
            {
                "names": list(defaults),
                "formats": [(array.dtype, array.shape) for array in arrays],
                "offsets": _starts(arrays)[:-1].tolist(),
                "itemsize": len(self._defaults),
            }
        )
        self._buffer = packed.to(device, copy=True)
        self.tensors = dict(zip(defaults, _views(self._buffer, arrays), strict=True))

    def fits(self, values: Mapping[str, NDArray[Any]]) -> bool:
        return all(len(value) <= self._capacity.get(name, len(value)) for name, value in values.items())

    def set(self, values: Mapping[str, NDArray[Any]]) -> None:
        """Sets the named arrays. Values may be shorter than their arrays; the rest gets the defaults. Unknown
        names are ignored."""
        packed = torch.empty(len(self._defaults), dtype=torch.uint8, pin_memory=self._pinned)
        host = packed.numpy()
        host[:] = self._defaults
        arrays = host.view(self._record)[0]
        for name, value in values.items():
            if name in self._capacity:
                arrays[name][: len(value)] = value
        self._buffer.copy_(packed, non_blocking=True)


def _pack(arrays: Sequence[NDArray[Any]], device: torch.device) -> torch.Tensor:
    """The arrays concatenated, uint8, in host memory (pinned for CUDA)."""
    starts = _starts(arrays)
    packed = torch.empty(int(starts[-1]), dtype=torch.uint8, pin_memory=device.type != "cpu")
    for start, array in zip(starts, arrays, strict=False):
        packed[start : start + array.nbytes] = torch.from_numpy(array.reshape(-1).view(np.uint8))
    return packed


def _views(packed: torch.Tensor, arrays: Sequence[NDArray[Any]]) -> list[torch.Tensor]:
    return [
        packed[start : start + array.nbytes].view(torch.from_numpy(array[:0]).dtype).view(array.shape)
        for start, array in zip(_starts(arrays), arrays, strict=False)
    ]


def _starts(arrays: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    return np.cumsum([0, *(-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays)])
