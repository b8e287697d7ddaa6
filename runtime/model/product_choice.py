"""Chooses the kernels of a GPU's matrix products by measuring them, before graphs are captured."""

from __future__ import annotations

import logging
import math
from itertools import groupby

import torch

from ...kernels.linear import Choice, Linear
from .capture import Captures, CudaCapture, Replay
from .interface.model import Model

RUNS = 5
"""runs per measurement, of which the shortest counts"""
CACHES = 4
"""Reading this many times the memory of the device's second-level cache leaves nothing older in the cache."""
log = logging.getLogger(__name__)


@torch.inference_mode()
def choose_products(model: Model) -> None:
    """Times the products of 1 to 4 rows in CUDA graphs, as steps run them. Chooses and logs the fastest
    kernels."""
    clock = ReplayClock(_other_weights())
    choices = Linear.choose_fastest(model.products(), clock.seconds)
    clock.log_failures()
    del clock
    torch.cuda.empty_cache()  # leaves the memory of the other weights to the KV cache
    for line in describe(choices):
        log.info("%s", line)


def _other_weights() -> torch.Tensor:
    """Bytes to read between runs, which displace a weight from the cache, as a step's other weights would."""
    cache = torch.cuda.get_device_properties().L2_cache_size
    return torch.zeros(min(torch.cuda.memory_allocated(), CACHES * cache) // 4, device="cuda")


class ReplayClock:
    """Measures the time that the device takes for work, without the host's time for launches."""

    def __init__(self, others: torch.Tensor) -> None:
        """others: what the device reads between two runs of the work"""
        self._captures = Captures(CudaCapture())
        self._others = others

    def seconds(self, work: Replay) -> float:
        """The time of `work` in seconds; infinite if `work` can't be captured."""
        replay = self._captures.capture(work, "products of few rows")
        if replay is None:
            return math.inf
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        shortest = math.inf
        for _ in range(RUNS):
            replay()  # the device is busy while the host launches what is timed
            self._others.amax()
            begin.record()
            replay()
            end.record()
            end.synchronize()
            shortest = min(shortest, begin.elapsed_time(end) / 1e3)
        return shortest

    def log_failures(self) -> None:
        self._captures.log_left_out("the choice of products")


def describe(choices: list[Choice]) -> list[str]:
    """A line for each shape: products 4096 → 6144: 1 row by our kernel in 12.1 µs (cuBLAS 14.0), 2 rows by
    cuBLAS in 14.0 µs (our kernel 15.2) …"""
    lines = []
    for (outputs, inputs), each in groupby(choices, lambda choice: (choice.outputs, choice.inputs)):
        lines.append(f"products {inputs} → {outputs}: {', '.join(map(_describe_choice, each))}")
    return lines


def _describe_choice(choice: Choice) -> str:
    rows = f"{choice.rows} row{'s' if choice.rows > 1 else ''}"
    cublas, ours = f"{choice.cublas * 1e6:.1f}", f"{choice.ours * 1e6:.1f}"
    if choice.taken is None:
        return f"{rows} by cuBLAS in {cublas} µs (our kernel {ours})"
    return f"{rows} by our kernel in {ours} µs (cuBLAS {cublas})"
