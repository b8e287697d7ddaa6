"""Gives the KV pages memory before they are first written.

The operating system allocates memory when it is first written, and clears it. That can take milliseconds
for a huge page, of which each layer needs one for the first token. A thread asks for it ahead of the pages in
use.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress

import torch

from ...kernels.common.teams import run_on_node
from ..system_memory import Span, populate

AHEAD_BYTES = 1 << 30
"""How far ahead of the pages in use the thread asks for memory. It hardly runs while all cores compute, so it
must be well ahead.
"""
MAX_NICE = 19
"""the lowest priority of an ordinary thread"""


class PageMemory:
    """Gives pages memory before their use. Requests first use pages in ascending order. Before they reach the
    last page with memory, a thread asks for more, a segment at a time.

    kvs: caches of one shape on the CPU (see `kv_pool.allocate_pool`).
    """

    def __init__(self, kvs: Sequence[torch.Tensor], page_size: int) -> None:
        self._kvs, self._page_size = kvs, page_size
        _, _, self._segments, self._tokens, _ = kvs[0].shape
        of_segment = sum(kv.stride(2) * kv.element_size() for kv in kvs)
        self._ahead = max(1, AHEAD_BYTES // of_segment)
        """number of segments in `AHEAD_BYTES`, at least one"""
        self._asked = 0
        """number of segments that the thread was told to ask for; some may have no memory yet"""
        self._more = threading.Semaphore(0)

    def start(self, everything: bool) -> None:
        """Asks for the memory of the first pages, or of all. No effect if the system has no such call."""
        if sys.platform == "linux":
            threading.Thread(target=self._run, name="page memory", daemon=True).start()
            self._ask(self._segments if everything else self._ahead)

    def prepare(self, page: int) -> None:
        """Asks for the memory of the segments ahead of a page that a step is about to write."""
        self._ask(page * self._page_size // self._tokens + 1 + self._ahead)

    def _ask(self, segments: int) -> None:
        """Tells the thread to ask for the memory of the first `segments` segments."""
        while self._asked < min(segments, self._segments):
            self._asked += 1
            self._more.release()

    def spans(self, segment: int) -> Iterator[Span]:
        """The memory of a segment: one span for each layer."""
        for kv in self._kvs:
            size = kv.stride(2) * kv.element_size()
            yield Span(kv.data_ptr() + segment * size, size)

    def _run(self) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), MAX_NICE)
        for segment in range(self._segments):
            self._more.acquire()
            with suppress(OSError):  # the cores that this process may use have changed
                run_on_node(segment)  # any request may use any page, so the nodes take turns
            if not all(populate(span) for span in self.spans(segment)):
                return
