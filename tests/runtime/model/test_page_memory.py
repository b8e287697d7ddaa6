"""Pages get memory before they are written, and keep what is in them."""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Callable

import torch
from arbora.runtime.model.page_memory import HUGE_PAGE, PageMemory
from arbora.runtime.system_memory import Span, populate

HEADS, PAGE, DIM = 2, 16, 64
PAGE_BYTES = PAGE * DIM * 2
STEP = HUGE_PAGE // PAGE_BYTES


def pools(pages: int, layers: int = 2) -> list[torch.Tensor]:
    size = 2 * HEADS * pages * PAGE_BYTES
    memories = [mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(layers)]
    shape = (2, HEADS, pages, PAGE, DIM)
    return [torch.frombuffer(memory, dtype=torch.bfloat16).view(shape) for memory in memories]


def resident(tensor: torch.Tensor) -> list[bool]:
    """Whether each memory page of a tensor that begins at one is in memory."""
    size = mmap.PAGESIZE
    count = -(-tensor.numel() * tensor.element_size() // size)
    found = (ctypes.c_ubyte * count)()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mincore(ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(count * size), found) == 0
    return [bool(each & 1) for each in found]


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_spans_cover_each_head_of_each_layer() -> None:
    kvs = pools(8)
    spans = list(PageMemory(kvs).spans(2, 3))
    assert len(spans) == 2 * 2 * HEADS
    assert {span.bytes for span in spans} == {3 * PAGE_BYTES}
    assert spans[1].address - spans[0].address == 8 * PAGE_BYTES
    assert spans[0].address == kvs[0].data_ptr() + 2 * PAGE_BYTES


def test_memory_is_given_ahead_of_the_pages_in_use_and_contents_stay() -> None:
    kvs = pools(3 * STEP)
    kvs[0][0, 0, 5] = 7.0
    memory = PageMemory(kvs)
    memory.start(everything=False)

    def given() -> list[bool]:
        """For each step of pages, whether all of its memory is there."""
        heads = [head for kv in kvs for side in kv for head in side]
        parts = [part for head in heads for part in head.split(STEP)]
        return [all(all(resident(part)) for part in parts[step::3]) for step in range(3)]

    wait_for(lambda: given() == [True, False, False])
    memory.used(STEP // 2 - 1)
    memory.used(STEP // 2)
    wait_for(lambda: given() == [True, True, False])
    memory.used(3 * STEP - 1)
    wait_for(lambda: given() == [True, True, True])
    assert kvs[0][0, 0, 5].eq(7.0).all()
    assert kvs[0].count_nonzero() == PAGE * DIM


def test_memory_of_all_pages_may_be_asked_for_at_once() -> None:
    kvs = pools(3 * STEP, layers=1)
    PageMemory(kvs).start(everything=True)
    wait_for(lambda: all(resident(kvs[0])))


def test_spans_without_a_whole_memory_page_need_nothing() -> None:
    assert populate(Span(mmap.PAGESIZE * 10 + 8, mmap.PAGESIZE))


def test_memory_that_is_not_mapped_is_reported() -> None:
    assert not populate(Span(mmap.PAGESIZE, 4 * mmap.PAGESIZE))
