"""Captures launches as CUDA graphs."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from typing import NamedTuple, TypeVar

import torch

from ..errors import ConfigError
from .devices import free_memory

log = logging.getLogger(__name__)
Replay = Callable[[], None]
Capture = Callable[[Replay], Replay]
T = TypeVar("T")
FINE_FROM, FINE_STEP = 256, 64
"""Above 256 tokens there is a graph for every 64, because the time of padding then counts."""


class CaptureError(ConfigError):
    """A capture failed, after which CUDA can't be used any more or ranks differ. The process must be
    replaced."""


class GraphMemory(NamedTuple):
    """How many bytes of memory a graph takes."""

    driver: int
    tensors: int
    """bytes for intermediate tensors, which all graphs share"""


class CudaCapture:
    """Captures the launches of functions; the graphs share the memory of intermediate tensors."""

    def __init__(self) -> None:
        self._device = torch.device("cuda", torch.cuda.current_device())
        self._begin()

    def __call__(self, work: Replay) -> Replay:
        current = torch.cuda.current_stream()
        self._warm_up(work)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                work()
        except Exception:
            self._end_failed(current)
            raise
        return graph.replay

    def measure(self, work: Replay) -> GraphMemory:
        """The memory that a graph of `work` takes. It is captured, run once and freed."""
        self._warm_up(work)
        free, reserved = free_memory(self._device), torch.cuda.memory_reserved()
        replay = self(work)
        replay()
        torch.cuda.synchronize()
        tensors = torch.cuda.memory_reserved() - reserved
        return GraphMemory(max(0, free - free_memory(self._device) - tensors), max(0, tensors))

    def _begin(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()

    def _warm_up(self, work: Replay) -> None:
        """Runs `work` before the capture, so that kernels are compiled and loaded, and libraries have
        allocated the workspaces that they need for each stream."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            work()
        torch.cuda.synchronize()

    def _end_failed(self, current: torch.cuda.Stream) -> None:
        """Ends a capture that failed, which PyTorch leaves half-way: its stream stays current, and until 2.12
        the allocator keeps using the graph's memory."""
        torch.cuda.set_stream(current)
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(self._device.index, self._pool)
        self._begin()


class Captures:
    """Captures graphs, and leaves out those that can't be captured."""

    def __init__(
        self,
        capture: Capture,
        measure: Callable[[Replay], GraphMemory] | None = None,
        needs_all: bool = False,
    ) -> None:
        """needs_all: leaves none out, because ranks must have the same graphs to exchange the same tensors"""
        self._capture, self._measure, self._needs_all = capture, measure, needs_all
        self._left_out: defaultdict[str, list[str]] = defaultdict(list)

    def capture(self, work: Replay, name: str) -> Replay | None:
        """The graph of `work`; None if capturing fails.

        Raises the error if memory is lacking, because the steps would lack it too. Raises CaptureError if
        `work` itself fails now, or if all graphs are needed.
        """
        return self._try(self._capture, work, name)

    def measure(self, work: Replay, name: str) -> GraphMemory:
        """The memory that a graph of `work` takes: none if it can't be captured. Raises like `capture`."""
        assert self._measure is not None
        return self._try(self._measure, work, name) or GraphMemory(0, 0)

    def _try(self, attempt: Callable[[Replay], T], work: Replay, name: str) -> T | None:
        try:
            return attempt(work)
        except Exception as error:
            if lacked_memory(error):
                raise
            if self._needs_all:
                raise CaptureError(f"The CUDA graph of {name} can't be captured: {error}.") from error
            self._left_out[str(error)].append(name)
        try:
            work()
        except Exception as error:
            raise CaptureError(f"CUDA can't be used after a failed capture: {error}.") from error
        return None

    def log_left_out(self, what: str) -> None:
        """Warns of the graphs of `what` that are missing since the last call."""
        for error, names in self._left_out.items():
            log.warning(
                "CUDA graphs of %s can't be captured for %s: %s. Kernels of such steps are launched one by "
                "one, which is slower. --debug eager asks for that from the start.",
                what,
                ", ".join(dict.fromkeys(names)),
                error.rstrip("."),
            )
        self._left_out.clear()


def lacked_memory(error: BaseException | None) -> bool:
    """Whether the error means that memory ran out, in PyTorch, a library or the driver."""
    if error is None:
        return False
    lacked = isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error)
    return lacked or lacked_memory(error.__context__)


def choose_sizes(most: int) -> list[int]:
    """The numbers of rows or tokens of graphs: 1, 2, 3, 4, 6, 8, 12, …, 192, 256, 320, 384, … and `most`."""
    steps = chain.from_iterable((1 << n, 3 << n >> 1) for n in range(1, FINE_FROM.bit_length()))
    fine = range(FINE_FROM, most, FINE_STEP)
    return sorted({1, most, *(size for size in chain(steps, fine) if size < most)})


def find_size(rows: int, sizes: list[int]) -> int:
    """The smallest of these sizes that holds a number of rows or tokens."""
    return next(size for size in sizes if size >= rows)
