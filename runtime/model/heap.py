"""Settings of the C library's heap."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # glibc's parameters of mallopt
LOADING_BYTES = 1 << 20
SERVING_BYTES = 32 << 20
"""glibc's maximum: it raises its threshold from 128 KiB towards this as larger blocks are freed"""


@contextmanager
def outside_heap() -> Iterator[None]:
    """Gives each block of a MiB or more its own mapping inside the context.

    Temporary copies of weights would leave gaps in the heap, which keep their memory, and a block from the
    heap may have the memory of an earlier block before it is written. Later blocks come from the heap again,
    because a step must not wait for the system's memory. No effect without glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        yield
        return
    mallopt(MMAP_THRESHOLD, LOADING_BYTES)
    try:
        yield
    finally:
        mallopt(MMAP_THRESHOLD, SERVING_BYTES)
        mallopt(TRIM_THRESHOLD, 2 * SERVING_BYTES)
