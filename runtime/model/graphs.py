"""Decode steps captured as CUDA graphs: a launch for a whole forward pass instead of ten for each layer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, product

import numpy as np
import torch

from ...kernels.attention.cuda import Shape
from ...kernels.attention.fixed_decode import Frame, Scratch, needs_large_groups
from ..errors import ConfigError
from .decoder import Decoder
from .decoder_config import DecoderConfig
from .input_batch import InputBatch

SKIPPED = -1
"""the place of a token whose keys and values go nowhere"""
MOST_PAGE_IDS = 1 << 24
log = logging.getLogger(__name__)

Replay = Callable[[], None]
Capture = Callable[[Replay], Replay]


class CudaCapture:
    """Captures what a function launches; the graphs share the memory of what is between their launches.

    Where that fails PyTorch is left in the middle of a capture, and the process can't go on.
    """

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Replay) -> Replay:
        work()  # kernels are compiled, and libraries take their workspaces, before anything is captured
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            work()
        return graph.replay


class DecodeGraphs:
    """The forward pass of steps in which every row has one token and samples, for some numbers of rows.

    A step runs in the smallest graph that holds it; rows beyond its own attend to nothing and write nothing.
    Graphs are captured once, the largest first, so that the others fit into its memory.
    """

    @torch.inference_mode()
    def __init__(
        self,
        decoder: Decoder,
        config: DecoderConfig,
        kvs: Sequence[torch.Tensor],
        rows: int,
        pages_of_row: int,
        capture: Capture,
    ) -> None:
        """
        rows: the most that a step may have
        pages_of_row: the most that one may have
        """
        device = kvs[0].device
        heads = (config.heads, config.kv_heads, config.head_dim)
        shapes = [Shape(*heads, window) for window in dict.fromkeys(config.windows)]
        scratch = Scratch.allocate(shapes[0], rows, min(rows * pages_of_row, MOST_PAGE_IDS), device)
        self._decoder = decoder
        self._kvs = kvs
        self._needs_large_groups = partial(needs_large_groups, shapes[0], element_size=kvs[0].element_size())
        self._tokens = torch.zeros(rows, dtype=torch.int32, device=device)
        self._positions = torch.zeros(rows, dtype=torch.int64, device=device)
        self._places = torch.full((rows,), SKIPPED, dtype=torch.int64, device=device)
        self._hidden = torch.empty(rows, config.hidden_size, dtype=kvs[0].dtype, device=device)
        self._sizes = sizes(rows)
        self._graphs: dict[tuple[int, bool], tuple[Frame, Replay]] = {}
        for size, large_groups in product(reversed(self._sizes), (False, True)):
            frame = Frame(shapes, size, scratch, kvs[0].element_size(), large_groups=large_groups)
            self._graphs[size, large_groups] = frame, capture(partial(self._forward, size, frame))

    def forward(self, batch: InputBatch) -> torch.Tensor | None:
        """As `Decoder.forward`, but the next call overwrites the result; None if no graph holds the step."""
        if batch.outputs is not None:
            return None
        rows = batch.size
        size = next(size for size in self._sizes if size >= rows)
        frame, replay = self._graphs[size, self._needs_large_groups(batch.attention.groups)]
        if not frame.load(batch.attention):
            return None
        self._tokens[:rows].copy_(batch.tokens)
        self._positions[:rows].copy_(batch.positions)
        self._places[:rows].copy_(batch.places)
        self._places[rows:size].fill_(SKIPPED)
        replay()
        return self._hidden[:rows]

    def _forward(self, rows: int, frame: Frame) -> None:
        batch = InputBatch(
            tokens=self._tokens[:rows],
            positions=self._positions[:rows],
            places=self._places[:rows],
            attention=frame.batch,
            outputs=None,
            sampled_rows=np.arange(rows),
            target_rows=np.zeros(0, np.int64),
        )
        self._hidden[:rows].copy_(self._decoder.forward(batch, self._kvs))


def capture_graphs(
    decoder: Decoder, config: DecoderConfig, kvs: Sequence[torch.Tensor], rows: int, pages_of_row: int
) -> DecodeGraphs:
    """Raises ConfigError if that can't be done."""
    started = time.perf_counter()
    try:
        graphs = DecodeGraphs(decoder, config, kvs, rows, pages_of_row, CudaCapture())
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"There is no memory left for CUDA graphs: {error} Lower --kv-memory or --max-running, or do "
            "without graphs: --enforce-eager."
        ) from error
    except RuntimeError as error:
        raise ConfigError(
            f"CUDA graphs can't be captured here: {error} Do without them: --enforce-eager."
        ) from error
    log.info("captured CUDA graphs for up to %d rows in %.1f s", rows, time.perf_counter() - started)
    return graphs


def sizes(most: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 12, … rows, and `most`."""
    steps = chain.from_iterable((1 << n, 3 << n >> 1) for n in range(1, most.bit_length() + 1))
    return sorted({1, most, *(size for size in steps if size < most)})
