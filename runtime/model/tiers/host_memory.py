"""Host memory that a GPU may access directly."""

from __future__ import annotations

import logging
import mmap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch

from ...byte_sizes import in_units
from ...system_memory import Span, populate

PIECE = 64 << 20
"""number of bytes that one call pins; other CUDA calls wait for it"""
REST = 4
"""Once steps run, the thread rests this many times as long as pinning a piece took."""
PORTABLE_AND_MAPPED = 1 | 2
"""flags of `cudaHostRegister`"""
log = logging.getLogger(__name__)


class HostMemory:
    """Zeroed memory, of which the first bytes are usable. On CUDA devices this part grows: a thread pins
    the memory piece by piece, because that takes seconds for each ten gigabytes.
    """

    def __init__(self, size: int, pinned: bool) -> None:
        """size: bytes. pinned: for CUDA devices. Raises OSError if the system has no such memory."""
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.tensor = torch.frombuffer(memory, dtype=torch.uint8)
        """uint8 [size]"""
        self._usable = 0 if pinned else size
        self._offer: Callable[[int], None] = lambda _: None
        self._error: RuntimeError | OSError | None = None
        self._changed = threading.Condition()
        self._busy = self._paused = self._rests = False
        if pinned:
            with suppress(OSError):  # a system without huge pages
                memory.madvise(mmap.MADV_HUGEPAGE)  # so that 512 times fewer pages must be pinned
            memory.madvise(mmap.MADV_DONTFORK)  # otherwise writes after a fork would go to other pages
            threading.Thread(target=self._pin, name="pin host memory", daemon=True).start()

    def offer(self, offer: Callable[[int], None]) -> None:
        """Calls `offer` with the number of usable bytes, now and whenever it grows.

        Waits for the first bytes. Raises RuntimeError or OSError if they can't be pinned.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._usable or self._error)
            if not self._usable and self._error is not None:
                raise self._error
            self._offer = offer
            offer(self._usable)

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Context in which no memory is pinned, because pinning takes some of the device's memory."""
        with self._changed:
            self._paused = True
            self._changed.wait_for(lambda: not self._busy)
        try:
            yield
        finally:
            with self._changed:
                self._paused = False
                self._changed.notify_all()

    def make_way_for_steps(self) -> None:
        """Tells the thread that steps run from now on. It then leaves the device to them most of the time."""
        self._rests = True

    def _pin(self) -> None:
        started = time.perf_counter()
        for piece in torch.split(self.tensor, PIECE):
            with self._changed:
                self._changed.wait_for(lambda: not self._paused)
                self._busy = True
            # Memory that exists is pinned faster, so other CUDA calls wait less. `pin` works without it too.
            try:
                populate(Span(piece.data_ptr(), piece.nbytes))
                begun = time.perf_counter()
                pin(piece)
            except (RuntimeError, OSError) as error:
                self._end_piece(0, error)
                break
            taken = time.perf_counter() - begun
            self._end_piece(piece.nbytes)
            if self._rests:
                time.sleep(REST * taken)
        log.info("pinned %s of host memory in %.1f s", in_units(self._usable), time.perf_counter() - started)

    def _end_piece(self, size: int, error: RuntimeError | OSError | None = None) -> None:
        """Notes that `size` more bytes are usable. After an error it is 0, and earlier bytes stay usable."""
        if error is not None and self._usable:
            used, wanted = in_units(self._usable), in_units(len(self.tensor))
            log.warning("the host cache has %s of %s, as no more can be pinned: %s", used, wanted, error)
        with self._changed:
            self._busy, self._error = False, error
            self._usable += size
            self._offer(self._usable)
            self._changed.notify_all()


def pin(memory: torch.Tensor) -> None:
    """Pins memory for CUDA. Raises RuntimeError.

    PyTorch's own pinned memory would be rounded up to a power of two: 33 GiB would take 64.
    """
    runtime = torch.cuda.cudart()
    torch.cuda.check_error(runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, PORTABLE_AND_MAPPED))
