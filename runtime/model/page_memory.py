"""Gives the KV pages memory before they are first written.

The operating system allocates memory when it is first written, and clears it. That can take milliseconds for
a huge page, of which each head of each layer needs one. A thread asks for it ahead of the pages in use.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress

import torch

from ..system_memory import Span, populate

HUGE_PAGE = 2 << 20  # bytes
NICEST = 19  # the lowest priority of an ordinary thread


class PageMemory:
    """At first, requests use pages in ascending order. Before they reach the last pages that have memory, the
    thread asks for the memory of the next ones.

    kvs: one [2, kv_heads, num_pages, page_size, cell] tensor for each layer, on the CPU.
    """

    def __init__(self, kvs: Sequence[torch.Tensor]) -> None:
        self._kvs = kvs
        self._pages = kvs[0].shape[2]
        page_bytes = kvs[0].stride(2) * kvs[0].element_size()
        self._step = -(-HUGE_PAGE // page_bytes)
        """pages that are given memory together: at least a huge page for each head"""
        self._asked = 0
        """pages that have memory or will have it soon"""
        self._more = threading.Semaphore(0)

    def start(self, everything: bool) -> None:
        """Asks for the memory of the first pages, or of all. No effect where the system has no such call."""
        if sys.platform == "linux":
            threading.Thread(target=self._run, name="page memory", daemon=True).start()
            self.used(self._pages if everything else 0)

    def used(self, page: int) -> None:
        """A step is about to write this page: asks for more memory if few pages that have it are left."""
        while page >= self._asked - self._step // 2 and self._asked < self._pages:
            self._asked = min(self._pages, self._asked + self._step)
            self._more.release()

    def spans(self, first: int, pages: int) -> Iterator[Span]:
        """The memory of some pages: one span for each head's keys and values in each layer."""
        for kv in self._kvs:
            page_bytes = kv.stride(2) * kv.element_size()
            for side in kv:
                for head in side:
                    yield Span(head.data_ptr() + first * page_bytes, pages * page_bytes)

    def _run(self) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICEST)
        first = 0
        while first < self._pages:
            self._more.acquire()
            count = min(self._step, self._pages - first)
            if not all(populate(span) for span in self.spans(first, count)):
                return
            first += count
