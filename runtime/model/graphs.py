"""Decode steps as CUDA graphs: one launch for a forward pass instead of ten for each layer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import product

import numpy as np
import torch

from ...kernels.attention.cuda import Shape
from ...kernels.attention.fixed_decode import Frame, Scratch, needs_large_groups
from .capture import Capture, Replay, holding, sizes
from .decoder import Decoder
from .decoder_config import DecoderConfig
from .input_batch import InputBatch

SKIPPED = -1
"""place of tokens whose keys and values are not written"""
LAYER_LAUNCHES, OTHER_LAUNCHES = 10, 3


class DecodeGraphs:
    """The forward pass of steps in which every row has one token and samples, for some numbers of rows.

    A step runs in the smallest graph that holds it; padding rows attend to nothing and write nothing.
    """

    @torch.inference_mode()
    def __init__(self, config: DecoderConfig, dtype: torch.dtype, rows: int, tables: torch.Tensor) -> None:
        """Allocates the inputs of the graphs.

        rows: the most rows of a step
        tables: the page tables of all slots, as in `PageTables`
        """
        device = tables.device
        heads = (config.heads, config.kv_heads, config.head_dim)
        self._shapes = [Shape(*heads, window) for window in dict.fromkeys(config.windows)]
        shape = self._shapes[0]
        self._scratch = Scratch.allocate(shape, rows, tables)
        self._needs_large_groups = partial(needs_large_groups, shape, element_size=dtype.itemsize)
        self._tokens = torch.zeros(rows, dtype=torch.int32, device=device)
        self._positions = torch.zeros(rows, dtype=torch.int64, device=device)
        self._places = torch.full((rows,), SKIPPED, dtype=torch.int64, device=device)
        self._hidden = torch.empty(rows, config.hidden_size, dtype=dtype, device=device)
        self._sizes = sizes(rows)
        self._graphs: dict[tuple[int, bool], tuple[Frame, Replay]] = {}

    @torch.inference_mode()
    def capture(self, decoder: Decoder, kvs: Sequence[torch.Tensor], capture: Capture) -> None:
        """Call once. Captures the largest first, so that the others fit into its memory."""
        for size, large_groups in product(reversed(self._sizes), (False, True)):
            frame = Frame(self._shapes, size, self._scratch, kvs[0].element_size(), large_groups=large_groups)
            work = partial(self._forward, size, frame, decoder, kvs)
            self._graphs[size, large_groups] = frame, capture(work)

    def launches(self, layers: int) -> int:
        """Launches in all graphs of a model with so many layers."""
        return 2 * len(self._sizes) * (LAYER_LAUNCHES * layers + OTHER_LAUNCHES)

    def forward(self, batch: InputBatch) -> torch.Tensor | None:
        """As `Decoder.forward`, but the next call overwrites the result; None if no graph holds the step."""
        if batch.outputs is not None:
            return None
        rows = batch.size
        size = holding(rows, self._sizes)
        frame, replay = self._graphs[size, self._needs_large_groups(batch.attention.groups)]
        if not frame.load(batch.attention):
            return None
        self._tokens[:rows].copy_(batch.tokens)
        self._positions[:rows].copy_(batch.positions)
        self._places[:rows].copy_(batch.places)
        self._places[rows:size].fill_(SKIPPED)
        replay()
        return self._hidden[:rows]

    def _forward(self, rows: int, frame: Frame, decoder: Decoder, kvs: Sequence[torch.Tensor]) -> None:
        batch = InputBatch(
            tokens=self._tokens[:rows],
            positions=self._positions[:rows],
            places=self._places[:rows],
            attention=frame.batch,
            outputs=None,
            sampled_rows=np.arange(rows),
            target_rows=np.zeros(0, np.int64),
        )
        self._hidden[:rows].copy_(decoder.forward(batch, kvs))
