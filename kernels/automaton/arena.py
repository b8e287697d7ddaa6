"""Allocates spans of rows of one device tensor."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..common.upload import upload


class Arena:
    """A tensor [capacity, *row_shape] with first-fit allocation of rows; it at least doubles when no span
    fits.

    Growing replaces `tensor`, so callers must not keep it.
    """

    def __init__(
        self, capacity: int, row_shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> None:
        self.tensor = torch.zeros(capacity, *row_shape, dtype=dtype, device=device)
        self._holes = [(0, capacity)]
        """(start, end) of the free spans, in ascending order, with used rows between them"""

    @property
    def free_rows(self) -> int:
        return sum(end - start for start, end in self._holes)

    def add(self, rows: NDArray[Any]) -> int:
        """Copy rows [n ≥ 1, *row_shape] into a free span and return its start."""
        start = self.allocate(len(rows))
        self.write(start, rows)
        return start

    def write(self, start: int, rows: NDArray[Any]) -> None:
        """Copy rows into an allocated span."""
        own = np.require(rows, requirements=["C", "W"])  # PyTorch warns of arrays that are read-only
        (self.tensor[start : start + len(rows)],) = upload([own], self.tensor.device)

    def free(self, start: int, length: int) -> None:
        self._holes = _join(sorted([*self._holes, (start, start + length)]))

    def allocate(self, length: int) -> int:
        """Allocate length ≥ 1 rows and return their start."""
        for i, (start, end) in enumerate(self._holes):
            if end - start >= length:
                self._holes[i : i + 1] = [(start + length, end)] if end - start > length else []
                return start
        self._grow(length)
        return self.allocate(length)

    def _grow(self, length: int) -> None:
        old = len(self.tensor)
        grown = self.tensor.new_zeros(max(2 * old, old + length), *self.tensor.shape[1:])
        grown[:old] = self.tensor
        self.tensor = grown
        self.free(old, len(grown) - old)


def _join(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined
