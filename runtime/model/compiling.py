"""Logs when kernels are compiled, because that delays the first start."""

from __future__ import annotations

import logging
from importlib.util import find_spec

from numba.core.event import Event, Listener, register

log = logging.getLogger(__name__)


def announce_compilation(device: str) -> None:
    """Call it before the first kernel runs."""
    notice = CompilationNotice()
    register("numba:compile", notice)  # type: ignore[no-untyped-call]
    if device == "cuda" and find_spec("triton") is not None:  # without Triton the device is refused later
        from triton import knobs

        knobs.compilation.listener = notice.on_triton


class CompilationNotice(Listener):
    """Logs one line for all kernels. Loading compiled kernels causes no event."""

    def __init__(self) -> None:
        self._is_written = False

    def on_start(self, event: Event) -> None:
        self._write()

    def on_end(self, event: Event) -> None:
        """Does nothing; there is nothing to log."""

    def on_triton(self, *, cache_hit: bool, **_: object) -> None:
        """Called for each kernel that is compiled or loaded."""
        if not cache_hit:
            self._write()

    def _write(self) -> None:
        if not self._is_written:
            self._is_written = True
            log.info(
                "compiling kernels, which can take a minute; "
                "the next start with the same model and options finds them compiled"
            )
