"""Pages get memory before they are written, and keep what is in them."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Callable

import pytest
import torch
from arbora.runtime.model import page_memory
from arbora.runtime.model.page_memory import PageMemory
from arbora.runtime.system_memory import Span, populate
from simulated_machine import SimulatedMachine

HEADS, PAGE, DIM = 2, 16, 64
SEGMENT = 512
SEGMENT_BYTES = 2 * HEADS * SEGMENT * DIM * 2
AHEAD = 4


def pools(segments: int, layers: int = 2) -> list[torch.Tensor]:
    size = segments * SEGMENT_BYTES
    memories = [mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(layers)]
    for memory in memories:
        memory.madvise(mmap.MADV_NOHUGEPAGE)  # which would also be the memory of another segment
    shape = (segments, 2, HEADS, SEGMENT, DIM)
    return [
        torch.frombuffer(memory, dtype=torch.bfloat16).view(shape).permute(1, 2, 0, 3, 4)
        for memory in memories
    ]


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


def test_spans_cover_a_segment_of_each_layer() -> None:
    kvs = pools(8)
    expected = [Span(kv.data_ptr() + 2 * SEGMENT_BYTES, SEGMENT_BYTES) for kv in kvs]
    assert list(PageMemory(kvs, PAGE).spans(2)) == expected


def test_memory_is_given_ahead_of_the_pages_in_use_and_contents_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    segments = 2 * AHEAD + 3
    kvs = pools(segments)
    monkeypatch.setattr(page_memory, "AHEAD_BYTES", AHEAD * len(kvs) * SEGMENT_BYTES)
    kvs[0][0, 0, 5] = 7.0
    memory = PageMemory(kvs, PAGE)
    memory.start(everything=False)

    def given() -> list[bool]:
        """For each segment, whether all of its memory is there."""
        return [all(all(resident(kv[:, :, segment])) for kv in kvs) for segment in range(segments)]

    def first(count: int) -> list[bool]:
        return [segment < count for segment in range(segments)]

    wait_for(lambda: given() == first(AHEAD))
    memory.prepare(0)
    wait_for(lambda: given() == first(AHEAD + 1))
    memory.prepare(SEGMENT // PAGE - 1)
    memory.prepare(SEGMENT // PAGE)
    wait_for(lambda: given() == first(AHEAD + 2))
    memory.prepare(segments * SEGMENT // PAGE - 1)
    wait_for(lambda: all(given()))
    assert kvs[0][0, 0, 5].eq(7.0).all()
    assert kvs[0].count_nonzero() == SEGMENT * DIM


def test_segments_get_memory_from_the_nodes_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    acts = list[tuple[str, int]]()
    monkeypatch.setattr(page_memory, "run_on_node", lambda number: acts.append(("node", number)))

    def note(span: Span) -> bool:
        acts.append(("bytes", span.bytes))
        return True

    monkeypatch.setattr(page_memory, "populate", note)
    memory = PageMemory(pools(3), PAGE)
    memory.start(everything=True)
    wait_for(lambda: len(acts) == 9)
    given = [("bytes", SEGMENT_BYTES)] * 2
    assert acts == [("node", 0), *given, ("node", 1), *given, ("node", 2), *given]


def test_pages_get_memory_also_if_their_thread_must_not_run_on_a_node(
    machine: SimulatedMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cores of a container may have changed since its start."""

    def refuse(thread: int, cpus: list[int]) -> None:
        raise OSError(22, "Invalid argument")

    machine.has_sockets(2, 1)
    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    kvs = pools(3)
    PageMemory(kvs, PAGE).start(everything=True)
    wait_for(lambda: all(all(resident(kv)) for kv in kvs))


def test_memory_of_all_pages_may_be_asked_for_at_once() -> None:
    kvs = pools(3 * AHEAD, layers=1)
    PageMemory(kvs, PAGE).start(everything=True)
    wait_for(lambda: all(resident(kvs[0])))


def test_spans_without_a_whole_memory_page_need_nothing() -> None:
    assert populate(Span(mmap.PAGESIZE * 10 + 8, mmap.PAGESIZE))


def test_memory_that_is_not_mapped_is_reported() -> None:
    assert not populate(Span(mmap.PAGESIZE, 4 * mmap.PAGESIZE))
