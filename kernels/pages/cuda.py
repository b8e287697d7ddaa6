# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Page copies on CUDA, one launch for all layers. A plane is the keys or the values of one head."""

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl

from ..common.upload import upload

BLOCK = 1024
PROGRAMS = 128
"""programs that move pages from or to host memory: they saturate the bus and leave most of the GPU free"""


@triton.jit
def _layer(like, addresses, layer):
    """The layer's cache, which has the dtype of `like`. PyTorch aligns it, so that its loads can be wide."""
    return tl.multiple_of(tl.load(addresses + layer).to(tl.pointer_type(like.dtype.element_ty)), 16)


# Compiled once for any number of moves and layers.
@triton.jit(do_not_specialize=["move_count", "layers"])
def copy_pages_kernel(
    like, addresses, move_count, layers, planes, pages, page_elements, BLOCK: tl.constexpr
):  # fmt: skip
    """addresses: of the layers' caches; then the sources, and the destinations."""
    move = tl.program_id(0)
    layer = tl.program_id(1) // planes
    plane = (tl.program_id(1) % planes).to(tl.int64)
    kv = _layer(like, addresses, layer) + plane * pages * page_elements
    moves = addresses + layers
    source = kv + tl.load(moves + move) * page_elements
    destination = kv + tl.load(moves + move_count + move) * page_elements
    for start in range(0, page_elements, BLOCK):
        element = start + tl.arange(0, BLOCK)
        inside = element < page_elements
        tl.store(destination + element, tl.load(source + element, mask=inside), mask=inside)


@triton.jit(do_not_specialize=["move_count", "layers"])
def move_pages_kernel(
    memory, addresses, move_count, layers, planes, pages, page_elements, place_elements,
    SAVE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """addresses: of the layers' caches; then the pages, and the places. memory: where the first of the layers
    begins in the first place, in pinned host memory."""
    moves = addresses + layers
    for work in range(tl.program_id(0), move_count * layers * planes, tl.num_programs(0)):
        move, rest = work // (layers * planes), work % (layers * planes)
        layer, plane = rest // planes, (rest % planes).to(tl.int64)
        kv = _layer(memory, addresses, layer)
        page = kv + (plane * pages + tl.load(moves + move)) * page_elements
        place = memory + tl.load(moves + move_count + move) * place_elements
        place += rest.to(tl.int64) * page_elements
        for start in range(0, page_elements, BLOCK):
            element = start + tl.arange(0, BLOCK)
            inside = element < page_elements
            if SAVE:
                tl.store(place + element, tl.load(page + element, mask=inside), mask=inside)
            else:
                tl.store(page + element, tl.load(place + element, mask=inside), mask=inside)


def move_pages(
    kvs: Sequence[torch.Tensor],
    first_layer: int,
    pages: Sequence[int],
    memory: torch.Tensor,
    places: Sequence[int],
    save: bool,
) -> None:
    """`pages.save_pages` or `load_pages` for consecutive layers: the device accesses host memory directly."""
    planes, elements = kvs[0].shape[0] * kvs[0].shape[1], kvs[0].shape[3] * kvs[0].shape[4]
    assert memory.is_contiguous() and memory.shape[2:] == (planes, elements)
    move_pages_kernel[(min(len(pages) * len(kvs) * planes, PROGRAMS),)](
        memory[0, first_layer],
        _table(kvs, pages, places),
        len(pages),
        len(kvs),
        planes,
        kvs[0].shape[2],
        elements,
        memory.stride(0),
        SAVE=save,
        BLOCK=BLOCK,
    )


def copy_pages(kvs: Sequence[torch.Tensor], sources: Sequence[int], destinations: Sequence[int]) -> None:
    """See `pages.copy_pages`."""
    planes, elements = kvs[0].shape[0] * kvs[0].shape[1], kvs[0].shape[3] * kvs[0].shape[4]
    copy_pages_kernel[(len(sources), len(kvs) * planes)](
        kvs[0],
        _table(kvs, sources, destinations),
        len(sources),
        len(kvs),
        planes,
        kvs[0].shape[2],
        elements,
        BLOCK=BLOCK,
    )


def _table(kvs: Sequence[torch.Tensor], first: Sequence[int], second: Sequence[int]) -> torch.Tensor:
    """int64 on the device: the layers' addresses, then both lists."""
    assert all(kv.is_contiguous() and kv.shape == kvs[0].shape for kv in kvs)
    addresses = [kv.data_ptr() for kv in kvs]
    (table,) = upload([np.array([*addresses, *first, *second], np.int64)], kvs[0].device)
    return table
