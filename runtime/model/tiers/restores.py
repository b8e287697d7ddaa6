"""Copies pages from host memory to the device, layer by layer, for the step that reads them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import torch

LoadLayer = Callable[[int], None]
"""copies a layer's pages"""

SMALL = 64 << 20
"""bytes that are copied in the time that it takes to launch the kernels of a step one by one: an estimate"""


class Restore(Protocol):
    def arrive(self, layer: int) -> None:
        """Makes a layer's pages ready before it is computed."""

    def arrive_at_once(self) -> bool:
        """Makes all pages ready before the next launch, if they are few. Returns whether they are."""
        ...

    def finish(self) -> float:
        """Waits for all pages; returns the milliseconds that copying took."""
        ...


class HostRestore:
    """On the CPU: copies a layer's pages right before they are read."""

    def __init__(self, load: LoadLayer, layers: int) -> None:
        self._load = load
        self._layers = layers
        self._next = 0
        self._seconds = 0.0

    def arrive(self, layer: int) -> None:
        started = time.perf_counter()
        self._load(layer)
        self._seconds += time.perf_counter() - started
        self._next = layer + 1

    def arrive_at_once(self) -> bool:
        return False

    def finish(self) -> float:
        for layer in range(self._next, self._layers):
            self.arrive(layer)
        return self._seconds * 1000


class StreamRestore:
    """On CUDA: copies in a separate stream while other layers are computed."""

    def __init__(self, stream: torch.cuda.Stream, load: LoadLayer, layers: int, size: int) -> None:
        """size: bytes of all pages"""
        self._size = size
        stream.wait_stream(torch.cuda.current_stream())
        self._started = _timed_event()
        self._ended = _timed_event()
        self._arrivals: list[torch.cuda.Event] = []
        with torch.cuda.stream(stream):
            self._started.record(stream)
            for layer in range(layers):
                load(layer)
                self._arrivals.append(stream.record_event())
            self._ended.record(stream)

    def arrive(self, layer: int) -> None:
        torch.cuda.current_stream().wait_event(self._arrivals[layer])

    def arrive_at_once(self) -> bool:
        if self._size <= SMALL:
            self.arrive(len(self._arrivals) - 1)  # copied last
        return self._size <= SMALL

    def finish(self) -> float:
        self._ended.synchronize()
        return float(self._started.elapsed_time(self._ended))


def _timed_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
