"""Launches that run beside others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


class SideStream:
    """A second stream of a GPU. While a graph is captured, its launches become a branch of the graph."""

    def __init__(self, device: torch.device) -> None:
        """device: on a CPU, which has no streams, launches follow each other"""
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    @contextmanager
    def beside(self, launch: Callable[[], object]) -> Iterator[None]:
        """Runs `launch` after all earlier launches of the current stream and beside those of the block. Later
        launches of the current stream wait for both."""
        if self._stream is None:
            launch()
            yield
            return
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            launch()
        yield
        current.wait_stream(self._stream)
