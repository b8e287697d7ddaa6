# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Page copies on CUDA, one launch for all layers. A plane is the keys or the values of one head.

The kernels copy words of 4 bytes, whatever the cells are.
"""

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
    """The layer's cache as words of the type of `like`. PyTorch aligns it, so that its loads can be wide."""
    return tl.multiple_of(tl.load(addresses + layer).to(tl.pointer_type(like.dtype.element_ty)), 16)


# Compiled once for any number of moves and layers.
@triton.jit(do_not_specialize=["move_count", "layers"])
def copy_pages_kernel(
    like, addresses, move_count, layers, planes, pages, page_words, BLOCK: tl.constexpr
):  # fmt: skip
    """addresses: of the layers' caches; then the sources, and the destinations."""
    move = tl.program_id(0)
    layer = tl.program_id(1) // planes
    plane = (tl.program_id(1) % planes).to(tl.int64)
    kv = _layer(like, addresses, layer) + plane * pages * page_words
    moves = addresses + layers
    source = kv + tl.load(moves + move) * page_words
    destination = kv + tl.load(moves + move_count + move) * page_words
    for start in range(0, page_words, BLOCK):
        word = start + tl.arange(0, BLOCK)
        inside = word < page_words
        tl.store(destination + word, tl.load(source + word, mask=inside), mask=inside)


@triton.jit(do_not_specialize=["move_count", "layers"])
def move_pages_kernel(
    memory, addresses, move_count, layers, planes, pages, page_words, place_words,
    SAVE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """addresses: of the layers' caches; then the pages, and the places. memory: where the first of the layers
    begins in the first place, in pinned host memory."""
    moves = addresses + layers
    for work in range(tl.program_id(0), move_count * layers * planes, tl.num_programs(0)):
        move, rest = work // (layers * planes), work % (layers * planes)
        layer, plane = rest // planes, (rest % planes).to(tl.int64)
        kv = _layer(memory, addresses, layer)
        page = kv + (plane * pages + tl.load(moves + move)) * page_words
        place = memory + tl.load(moves + move_count + move) * place_words
        place += rest.to(tl.int64) * page_words
        for start in range(0, page_words, BLOCK):
            word = start + tl.arange(0, BLOCK)
            inside = word < page_words
            if SAVE:
                tl.store(place + word, tl.load(page + word, mask=inside), mask=inside)
            else:
                tl.store(page + word, tl.load(place + word, mask=inside), mask=inside)


def move_pages(
    kvs: Sequence[torch.Tensor],
    first_layer: int,
    pages: Sequence[int],
    memory: torch.Tensor,
    places: Sequence[int],
    save: bool,
) -> None:
    """`pages.save_pages` or `load_pages` for consecutive layers: the device accesses host memory directly."""
    planes, words = _planes_and_words(kvs[0])
    memory = memory.view(torch.int32)
    assert memory.is_contiguous() and memory.shape[2:] == (planes, words)
    move_pages_kernel[(min(len(pages) * len(kvs) * planes, PROGRAMS),)](
        memory[0, first_layer],
        _table(kvs, pages, places),
        len(pages),
        len(kvs),
        planes,
        kvs[0].shape[2],
        words,
        memory.stride(0),
        SAVE=save,
        BLOCK=BLOCK,
    )


def copy_pages(kvs: Sequence[torch.Tensor], sources: Sequence[int], destinations: Sequence[int]) -> None:
    """See `pages.copy_pages`."""
    planes, words = _planes_and_words(kvs[0])
    copy_pages_kernel[(len(sources), len(kvs) * planes)](
        kvs[0].view(torch.int32),
        _table(kvs, sources, destinations),
        len(sources),
        len(kvs),
        planes,
        kvs[0].shape[2],
        words,
        BLOCK=BLOCK,
    )


def _planes_and_words(kv: torch.Tensor) -> tuple[int, int]:
    """The planes of a layer's cache, and the words of a page in one of them."""
    page_bytes = kv.shape[3] * kv.shape[4] * kv.element_size()
    assert page_bytes % 4 == 0, f"{page_bytes} bytes of a page's keys are no whole number of words"
    return kv.shape[0] * kv.shape[1], page_bytes // 4


def _table(kvs: Sequence[torch.Tensor], first: Sequence[int], second: Sequence[int]) -> torch.Tensor:
    """int64 on the device: the layers' addresses, then both lists."""
    assert all(kv.is_contiguous() and kv.shape == kvs[0].shape for kv in kvs)
    addresses = [kv.data_ptr() for kv in kvs]
    (table,) = upload([np.array([*addresses, *first, *second], np.int64)], kvs[0].device)
    return table
