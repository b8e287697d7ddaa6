# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Page copies on CUDA. A plane is the keys or the values of one head."""

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl

from ..common.upload import upload

BLOCK = 1024
PROGRAMS = 128
"""programs that move pages from or to host memory: they saturate the bus and leave most of the GPU free"""


# Compiled once for any number of moves.
@triton.jit(do_not_specialize=["move_count"])
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


@triton.jit(do_not_specialize=["move_count"])
def move_pages_kernel(
    kv,
    memory,
    moves,
    move_count,
    planes,
    pages,
    page_elements,
    place_elements,
    SAVE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """moves: pages, then places. memory: one layer of the first place, in pinned host memory."""
    for work in range(tl.program_id(0), move_count * planes, tl.num_programs(0)):
        move, plane = work // planes, (work % planes).to(tl.int64)
        page = kv + (plane * pages + tl.load(moves + move)) * page_elements
        place = memory + tl.load(moves + move_count + move) * place_elements + plane * page_elements
        for start in range(0, page_elements, BLOCK):
            element = start + tl.arange(0, BLOCK)
            inside = element < page_elements
            if SAVE:
                tl.store(place + element, tl.load(page + element, mask=inside), mask=inside)
            else:
                tl.store(page + element, tl.load(place + element, mask=inside), mask=inside)


def move_pages(
    kv: torch.Tensor,
    layer: int,
    pages: Sequence[int],
    memory: torch.Tensor,
    places: Sequence[int],
    save: bool,
) -> None:
    """One layer of `pages.save_pages` or `load_pages`: the device accesses host memory directly."""
    (moves,) = upload([np.array([*pages, *places], np.int64)], kv.device)
    planes, elements = kv.shape[0] * kv.shape[1], kv.shape[3] * kv.shape[4]
    assert kv.is_contiguous() and memory.is_contiguous() and memory.shape[2:] == (planes, elements)
    move_pages_kernel[(min(len(pages) * planes, PROGRAMS),)](
        kv,
        memory[0, layer],
        moves,
        len(pages),
        planes,
        kv.shape[2],
        elements,
        memory.stride(0),
        SAVE=save,
        BLOCK=BLOCK,
    )


def copy_pages(kvs: Sequence[torch.Tensor], sources: Sequence[int], destinations: Sequence[int]) -> None:
    """See `pages.copy_pages`."""
    (moves,) = upload([np.array([*sources, *destinations], np.int64)], kvs[0].device)
    for kv in kvs:
        assert kv.is_contiguous()
        grid = (len(sources), kv.shape[0] * kv.shape[1])
        copy_pages_kernel[grid](kv, moves, len(sources), kv.shape[2], kv.shape[3] * kv.shape[4], BLOCK=BLOCK)
