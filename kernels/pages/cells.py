"""How the KV cache stores a cell: the key or the value of one token and KV head.

Cells are the last dimension of the cache's tensors and follow each other without gaps, so every copy of a
page includes all of them. `cells_cpu` has the same format for the CPU's kernels.
"""

from typing import NamedTuple

import torch

MAX_CODE = 127
"""largest magnitude of an int8 code"""

FP8 = torch.float8_e4m3fn
FP8_MOST = 448
"""largest magnitude of an FP8 (E4M3) code"""

MIN_MAGNITUDE = 2.0**-100
"""Cells whose values are all smaller are stored as zeros: 127 or 448 divided by them may be infinite."""

WORD = 4
"""bytes of a scale, and the alignment of cells that have one"""


class CellFormat(NamedTuple):
    """How a cell stores its values: 16- and 32-bit floats unchanged, int8 and FP8 (E4M3) as codes and a
    float32 scale. A value is its code times the scale. Only the CUDA kernels have FP8.

    A cell with a value that is infinite or NaN has the scale NaN, so that all its values are NaN.
    """

    dtype: torch.dtype
    """dtype of the cache's tensors"""

    @property
    def is_scaled(self) -> bool:
        return self.dtype in (torch.int8, FP8)

    @property
    def most(self) -> int:
        """The largest magnitude of a code."""
        return FP8_MOST if self.dtype == FP8 else MAX_CODE

    def elements(self, head_dim: int) -> int:
        """The size of a cell in elements of `dtype`."""
        return -(-head_dim // WORD) * WORD + WORD if self.is_scaled else head_dim

    def head_dim(self, elements: int) -> int:
        """The number of values for which a cell of `elements` elements has room."""
        return elements - WORD if self.is_scaled else elements

    def bytes(self, head_dim: int) -> int:
        return self.elements(head_dim) * self.dtype.itemsize

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        """Cells [..., elements] of values [..., head_dim]."""
        if not self.is_scaled:
            return values.to(self.dtype)
        values = values.float()
        largest = values.abs().amax(-1, keepdim=True)
        codes = torch.where(largest >= MIN_MAGNITUDE, values * (self.most / largest), 0.0)
        scales = torch.where(largest >= MIN_MAGNITUDE, largest / self.most, 0.0)
        broken = ~largest.isfinite()
        cells = values.new_zeros((*values.shape[:-1], self.elements(values.shape[-1])), dtype=self.dtype)
        codes = codes.masked_fill(broken, 0.0)
        cells[..., : values.shape[-1]] = (codes if self.dtype == FP8 else codes.round()).to(self.dtype)
        cells[..., -WORD:].view(torch.float32).copy_(scales.masked_fill(broken, torch.nan))
        return cells

    def decode(self, cells: torch.Tensor, head_dim: int, dtype: torch.dtype) -> torch.Tensor:
        """Values [..., head_dim] of cells [..., elements]; a view if the cells store values as `dtype`."""
        if not self.is_scaled:
            return cells.to(dtype)
        values = torch.empty((*cells.shape[:-1], head_dim), dtype=dtype, device=cells.device)
        codes = cells[..., :head_dim]
        wide = codes.to(dtype) if self.dtype == FP8 else codes
        return torch.mul(wide, cells[..., -WORD:].view(torch.float32), out=values)


def codes_and_scales(kv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of the cache as int8 and as float32, for kernels that read codes and scales. Returns the cache
    itself twice if its cells have no scales."""
    if not CellFormat(kv.dtype).is_scaled:
        return kv, kv
    return kv.view(torch.int8), kv.view(torch.float32)
