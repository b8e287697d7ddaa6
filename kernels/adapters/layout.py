"""What the kernels of adapters read."""

from __future__ import annotations

from dataclasses import dataclass

import torch

BLOCK_ROWS = 16
"""maximal rows of a block, which have the same adapter"""
RANKS = 8
"""rows of A that a thread of a CPU multiplies at a time"""
NO_ADAPTER = -1
RANK, DOWN, UP, SCALES, FIELDS = range(5)
"""An adapter's entry for a product, int64 [FIELDS]. RANK is that of each part; 0: the adapter leaves the
product as it is. The others are addresses: DOWN [parts · rank, inputs] has the matrices A of all parts, UP
[rank, outputs] the transposed matrices B side by side, both in the dtype of activations, with zeros where a
part has a lower rank. SCALES, float32 [parts], has 0 for a part that the adapter leaves as it is."""


@dataclass(frozen=True)
class ProductTable:
    """The entries of all adapters for one product."""

    entries: torch.Tensor
    """int64 [adapters, FIELDS]"""
    step: int
    """from one adapter's entry to the next"""
    sizes: tuple[int, ...]
    """outputs of each part"""
    ends: torch.Tensor
    """int64 [parts]: where each part's outputs end"""
    max_rank: int
    """the largest rank of a part"""

    @property
    def width(self) -> int:
        """The largest number of rows of stacked matrices A, in whole pieces of the CPU's kernel."""
        return -(-len(self.sizes) * self.max_rank // RANKS) * RANKS
