"""Says that kernels are being compiled, if they are: later starts that need the same find them compiled."""

from __future__ import annotations

import logging
from importlib.util import find_spec

from numba.core.event import Event, Listener, register

log = logging.getLogger(__name__)


def announce_compilation(device: str) -> None:
    """Comes before the first kernel is called."""
    notice = CompilationNotice()
    register("numba:compile", notice)  # type: ignore[no-untyped-call]
    if device == "cuda" and find_spec("triton") is not None:  # without it the device is refused soon
        from triton import knobs

        knobs.compilation.listener = notice.on_triton


class CompilationNotice(Listener):
    """Writes one line, however many kernels there are. Loading compiled ones is none of its events."""

    def __init__(self) -> None:
        self._is_written = False

    def on_start(self, event: Event) -> None:
        self._write()

    def on_end(self, event: Event) -> None:
        """Nothing is left to say."""

    def on_triton(self, *, cache_hit: bool, **_: object) -> None:
        """Of one kernel, when it is there."""
        if not cache_hit:
            self._write()

    def _write(self) -> None:
        if not self._is_written:
            self._is_written = True
            log.info(
                "compiling kernels, which can take a minute; "
                "the next start with the same model and options finds them compiled"
            )
