"""Each slot's page table: the pages of its tokens, in order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class PageTables:
    """A table only grows until it is cleared. Reading several slots is one array operation."""

    def __init__(self, slots: int, max_model_len: int, page_size: int) -> None:
        self.page_size = page_size
        self._pages = np.zeros((slots, -(-max_model_len // page_size)), np.int32)
        self._counts = np.zeros(slots, np.int64)

    def clear(self, slot: int) -> None:
        self._counts[slot] = 0

    def append(self, slot: int, pages: NDArray[np.int32]) -> None:
        start = self._counts[slot]
        self._counts[slot] = start + len(pages)
        self._pages[slot, start : start + len(pages)] = pages

    def table(self, slot: int) -> NDArray[np.int32]:
        """A view, which shows later changes."""
        return self._pages[slot, : self._counts[slot]]

    def places(self, slots: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the KV of tokens at `positions` of `slots` is: page × page_size + offset."""
        pages = positions // self.page_size
        assert bool((pages < self._counts[slots]).all()), "a token has no page"
        return self._pages[slots, pages].astype(np.int64) * self.page_size + positions % self.page_size
