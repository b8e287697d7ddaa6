"""Where the cells of a layer's cache are on a CPU.

Heads stand beside each other in *segments* of consecutive pages, so that memory is needed in the order of
the pages. The system gives it in pieces of up to two MiB. If each head had one long matrix, the first token
would take one piece for each head of each layer.
"""

from typing import NamedTuple

import torch


class Segments(NamedTuple):
    """The strides of a layer's cache, in cells.

    Slot s of a head is token s % tokens of segment s // tokens.
    """

    tokens: int
    """tokens in a segment"""
    segment: int
    """cells from the start of a segment to the start of the next one"""
    head: int
    """cells from a token's key of one KV head to its key of the next KV head"""
    value: int
    """cells from a key to its value"""

    @staticmethod
    def of(kv: torch.Tensor) -> "Segments":
        """kv: [2, kv_heads, segments, tokens, cell], in any order except that the cells of a segment and head
        follow each other."""
        cell = kv.shape[4]
        assert kv.stride(4) == 1 and kv.stride(3) == cell
        assert all(kv.stride(dim) % cell == 0 for dim in range(3))
        return Segments(kv.shape[3], kv.stride(2) // cell, kv.stride(1) // cell, kv.stride(0) // cell)

    def first_cell(self, slot: int) -> int:
        """The index of the cell that holds the key of the first head for a slot."""
        return slot // self.tokens * self.segment + slot % self.tokens


def gather_pages(kv: torch.Tensor, pages: torch.Tensor, page_size: int) -> torch.Tensor:
    """Returns a copy of some pages, [2, kv_heads, n, page_size, cell]. pages: their ids, int64 [n]."""
    return _by_page(kv, page_size)[_places(kv, pages, page_size)]


def set_pages(kv: torch.Tensor, pages: torch.Tensor, values: torch.Tensor) -> None:
    """Writes some pages. pages: their ids, int64 [n]; values: [2, kv_heads, n, page_size, cell]."""
    page_size = values.shape[3]
    _by_page(kv, page_size)[_places(kv, pages, page_size)] = values


def _by_page(kv: torch.Tensor, page_size: int) -> torch.Tensor:
    """[2, kv_heads, segments, pages of a segment, page_size, cell]"""
    return kv.view(*kv.shape[:3], -1, page_size, kv.shape[4])


def _places(
    kv: torch.Tensor, pages: torch.Tensor, page_size: int
) -> tuple[slice, slice, torch.Tensor, torch.Tensor]:
    each = kv.shape[3] // page_size
    return slice(None), slice(None), pages // each, pages % each
