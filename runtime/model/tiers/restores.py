"""Copies pages from host memory to the device for the step that reads them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from .copy_streams import Copies, CopyStream

LoadLayers = Callable[[range], None]
"""copies the pages of some layers"""

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
    """On CUDA: copies beside the step before and beside earlier layers. Up to `SMALL` bytes are copied by one
    launch."""

    def __init__(
        self, stream: CopyStream, load: LoadLayers, layers: int, size: int, after: Sequence[Copies]
    ) -> None:
        """size: bytes of all pages. after: copies of what the pages contained before"""
        self._size = size
        self._started = stream.launch(lambda: None, after)
        if size <= SMALL:
            self._arrivals = [stream.launch(partial(load, range(layers)))] * layers
        else:
            self._arrivals = [
                stream.launch(partial(load, range(layer, layer + 1))) for layer in range(layers)
            ]

    def arrive(self, layer: int) -> None:
        self._arrivals[layer].precede_launches()

    def arrive_at_once(self) -> bool:
        if self._size <= SMALL:
            self._arrivals[-1].precede_launches()
        return self._size <= SMALL

    def finish(self) -> float:
        self._arrivals[-1].wait()
        return self._arrivals[-1].ms_since(self._started)
