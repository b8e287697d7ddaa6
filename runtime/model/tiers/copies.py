"""Copies of pages between device and host memory: on CUDA beside the steps, on a CPU in order with them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch

LoadLayers = Callable[[range], None]
"""copies the pages of some layers"""
MAX_AT_ONCE = 64 << 20
"""Estimated number of bytes that are copied while the kernels of a step are launched one by one."""


class Copies(Protocol):
    """Copies that were launched together."""

    def ready(self) -> bool:
        """Whether the copies are complete."""
        ...

    def wait(self) -> None:
        """Waits until the copies are complete."""

    def precede_launches(self) -> None:
        """Makes later launches on the current stream wait for the copies."""

    def ms_since(self, earlier: Copies) -> float:
        """Milliseconds between the end of `earlier` and the end of these copies. Both must be complete."""
        ...


class CopyStream(Protocol):
    def launch(
        self, copy: Callable[[], None], after: Sequence[Copies] = (), after_steps: bool = False
    ) -> Copies:
        """Launches a copy. It begins after earlier copies of this stream, after those in `after`, and with
        `after_steps` also after everything launched on the current stream."""
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
        self._stream = torch.cuda.Stream(device)

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
    """Copies on the current stream: complete when everything launched on it is."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event(enable_timing=True)
        self._event.record()

    def ready(self) -> bool:
        return bool(self._event.query())

    def wait(self) -> None:
        self._event.synchronize()

    def precede_launches(self) -> None:
        torch.cuda.current_stream().wait_event(self._event)

    def ms_since(self, earlier: Copies) -> float:
        assert isinstance(earlier, _CudaCopies)
        return float(earlier._event.elapsed_time(self._event))


class Restore(Protocol):
    """Copies pages from host memory to the device for the step that reads them."""

    def arrive(self, layer: int) -> None:
        """Makes a layer's pages ready before the layer is computed."""

    def arrive_at_once(self) -> bool:
        """Makes all pages ready before the next launch, if they are few. Returns whether it did."""
        ...

    def finish(self) -> float:
        """Waits for all pages; returns the milliseconds that copying took."""
        ...


class HostRestore:
    """On the CPU: copies a layer's pages right before they are read."""

    def __init__(self, load: LoadLayers, layers: int) -> None:
        self._load = load
        self._layers = layers
        self._next = 0
        self._seconds = 0.0

    def arrive(self, layer: int) -> None:
        started = time.perf_counter()
        self._load(range(layer, layer + 1))
        self._seconds += time.perf_counter() - started
        self._next = layer + 1

    def arrive_at_once(self) -> bool:
        return False

    def finish(self) -> float:
        for layer in range(self._next, self._layers):
            self.arrive(layer)
        return self._seconds * 1000


class StreamRestore:
    """On CUDA: copies beside the previous step and earlier layers. One launch copies up to `MAX_AT_ONCE`
    bytes."""

    def __init__(
        self, stream: CopyStream, load: LoadLayers, layers: int, size: int, after: Sequence[Copies]
    ) -> None:
        """size: bytes of all pages. after: copies of what the pages contained before"""
        self._size = size
        self._started = stream.launch(lambda: None, after)
        if size <= MAX_AT_ONCE:
            self._arrivals = [stream.launch(partial(load, range(layers)))] * layers
        else:
            self._arrivals = [
                stream.launch(partial(load, range(layer, layer + 1))) for layer in range(layers)
            ]

    def arrive(self, layer: int) -> None:
        self._arrivals[layer].precede_launches()

    def arrive_at_once(self) -> bool:
        if self._size <= MAX_AT_ONCE:
            self._arrivals[-1].precede_launches()
        return self._size <= MAX_AT_ONCE

    def finish(self) -> float:
        self._arrivals[-1].wait()
        return self._arrivals[-1].ms_since(self._started)
