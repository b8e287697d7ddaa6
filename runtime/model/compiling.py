"""Logs when kernels are compiled, because that delays the first start."""

from __future__ import annotations

import logging
import time
from importlib.util import find_spec

from numba.core.event import Event, Listener, register

from ..logs import ProgressLine

log = logging.getLogger(__name__)


def announce_compilation(device: str) -> CompilationNotice:
    """Announces kernels that are compiled from now on, until the caller calls `loaded` on the result."""
    notice = CompilationNotice()
    register("numba:compile", notice)
    if device == "cuda" and find_spec("triton") is not None:  # without Triton a later check refuses CUDA
        from triton import knobs

        knobs.compilation.listener = notice.on_triton
    return notice


class CompilationNotice(Listener):  # type: ignore[misc]
    """Logs one line for all kernels, and counts them on a terminal. Loading compiled kernels causes no
    event."""

    def __init__(self) -> None:
        self._is_written = False
        self._progress: ProgressLine | None = ProgressLine()
        self._begun = 0.0
        self._compiled = 0

    def on_start(self, event: Event) -> None:
        self._write()

    def on_end(self, event: Event) -> None:
        self._count()

    def on_triton(self, *, cache_hit: bool, **_: object) -> None:
        """Called for each kernel that is compiled or loaded."""
        if not cache_hit:
            self._write()
            self._count()

    def loaded(self) -> None:
        """Ends the progress display and logs the time. Kernels compiled later are compiled for requests."""
        if self._is_written:
            seconds = time.monotonic() - self._begun
            log.info("compiled %d kernel functions, %.1f s after the first began", self._compiled, seconds)
        if self._progress is not None:
            self._progress.end()
        self._progress = None

    def _count(self) -> None:
        self._compiled += 1
        if self._progress is not None:
            seconds = time.monotonic() - self._begun
            self._progress.show(f"compiling kernels: {self._compiled} functions in {seconds:.0f} s")

    def _write(self) -> None:
        if not self._is_written:
            self._is_written = True
            self._begun = time.monotonic()
            log.info(
                "compiling kernels, which can take some minutes; "
                "the next start with the same model and options finds them compiled"
            )
