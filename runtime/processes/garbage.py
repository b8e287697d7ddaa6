"""Python's cyclic garbage collector in a process that serves: short and rare collections."""

from __future__ import annotations

import gc

from ..system_memory import give_back_freed_memory

# Net number of new container objects between two collections of the young ones; a connection or a request
# makes about a hundred. Python's own threshold (700) makes a burst of connections spend a quarter of its
# time in collections.
YOUNG = 5_000
YOUNG_PER_MIDDLE = 10


def leave_out_existing_objects() -> None:
    """Excludes all existing objects from later collections, and returns the memory that starting has freed to
    the system. Call it when a process is ready."""
    gc.collect()
    give_back_freed_memory()
    gc.freeze()
    gc.set_threshold(YOUNG, YOUNG_PER_MIDDLE)
