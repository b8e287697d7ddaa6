"""Captures launches as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import torch

from ..errors import ConfigError

Replay = Callable[[], None]
Capture = Callable[[Replay], Replay]


class CaptureError(ConfigError):
    """Graphs cannot be captured. The process must be replaced, see `CudaCapture`."""


class CudaCapture:
    """Captures the launches of functions; the graphs share the memory of intermediate tensors.

    After a failure PyTorch stays in the middle of a capture: until 2.12 its allocator then refuses to free
    memory.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, work: Replay) -> Replay:
        self._warm_up(work)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            work()
        return graph.replay

    def _warm_up(self, work: Replay) -> None:
        """Before the capture, compiles and loads kernels and lets libraries allocate their workspaces, which
        they have for each stream."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            work()
        torch.cuda.synchronize()


def sizes(most: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, … rows, and `most`."""
    steps = chain.from_iterable((1 << n, 3 << n >> 1) for n in range(1, most.bit_length() + 1))
    return sorted({1, most, *(size for size in steps if size < most)})


def holding(rows: int, graph_sizes: list[int]) -> int:
    """The smallest of these sizes for so many rows."""
    return next(size for size in graph_sizes if size >= rows)
