# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Page copies on CUDA: one program for each move and plane (keys or values of one head)."""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

BLOCK = 1024


@triton.jit
def copy_pages_kernel(kv, moves, move_count, pages, page_elements, BLOCK: tl.constexpr):
    """moves: sources, then destinations."""
    move = tl.program_id(0)
    plane = kv + tl.program_id(1).to(tl.int64) * pages * page_elements
    source = plane + tl.load(moves + move) * page_elements
    destination = plane + tl.load(moves + move_count + move) * page_elements
    for start in range(0, page_elements, BLOCK):
        element = start + tl.arange(0, BLOCK)
        inside = element < page_elements
        tl.store(destination + element, tl.load(source + element, mask=inside), mask=inside)


def copy_pages(kvs: Sequence[torch.Tensor], sources: Sequence[int], destinations: Sequence[int]) -> None:
    """See `pages.copy_pages`."""
    moves = torch.tensor([*sources, *destinations], dtype=torch.int64).to(kvs[0].device, non_blocking=True)
    for kv in kvs:
        assert kv.is_contiguous()
        grid = (len(sources), kv.shape[0] * kv.shape[1])
        copy_pages_kernel[grid](kv, moves, len(sources), kv.shape[2], kv.shape[3] * kv.shape[4], BLOCK=BLOCK)
