"""Copies of pages in the order of streams: on CUDA beside the steps, on a CPU at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch


class Copies(Protocol):
    """Copies that were launched together."""

    def ready(self) -> bool:
        """Whether they are complete."""
        ...

    def wait(self) -> None:
        """Returns when they are complete."""

    def precede_launches(self) -> None:
        """Launches on the current stream wait for them from now on."""

    def ms_since(self, earlier: Copies) -> float:
        """Milliseconds between the ends of `earlier` and these, which are complete."""
        ...


class CopyStream(Protocol):
    def launch(
        self, copy: Callable[[], None], after: Sequence[Copies] = (), after_steps: bool = False
    ) -> Copies:
        """Launches a copy. It begins after earlier copies of this stream, after those in `after`, and with
        `after_steps` after everything launched on the current stream."""
        ...


class _Done:
    def ready(self) -> bool:
        return True

    def wait(self) -> None:
        pass

    def precede_launches(self) -> None:
        pass

    def ms_since(self, earlier: Copies) -> float:
        return 0.0


class HostCopyStream:
    """On the CPU steps are computed when they are launched, and so are copies."""

    def launch(
        self, copy: Callable[[], None], after: Sequence[Copies] = (), after_steps: bool = False
    ) -> Copies:
        copy()
        return _Done()


class CudaCopyStream:
    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def launch(
        self, copy: Callable[[], None], after: Sequence[Copies] = (), after_steps: bool = False
    ) -> Copies:
        if after_steps:
            self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for copies in after:
                copies.precede_launches()
            copy()
            return _CudaCopies()


class _CudaCopies:
    """All that was launched on the current stream."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._event.record()

    def ready(self) -> bool:
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        self._event.synchronize()

    def precede_launches(self) -> None:
        torch.cuda.current_stream().wait_event(self._event)

    def ms_since(self, earlier: Copies) -> float:
        assert isinstance(earlier, _CudaCopies)
        return float(earlier._event.elapsed_time(self._event))
