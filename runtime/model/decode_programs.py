"""Decode steps as CPU programs: one parallel region for a forward pass instead of ten for each layer."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ...kernels.attention.cpu import CpuAttention, plan_attention
from ...kernels.common.program import Program
from ...kernels.common.reused_memory import Blocks, NotRecordableError, ReusedMemory
from ...kernels.common.threads import recorded_calls
from .decoder import Decoder
from .decoder_config import DecoderConfig
from .input_batch import InputBatch

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Recorded:
    program: Program
    residual: torch.Tensor
    """[rows, hidden]: the embedded tokens, which the program overwrites"""
    positions: torch.Tensor
    places: torch.Tensor
    hidden: torch.Tensor
    """[rows, hidden], the result"""
    attention: dict[int | None, list[int]]
    """its calls of attention, by the window of their layer"""


class DecodePrograms:
    """The forward pass of steps in which every row has one token and samples.

    A program is recorded at the first step with its number of rows. If the model needs operations that are
    not kernels of ours, no step is replayed.
    """

    def __init__(
        self, config: DecoderConfig, decoder: Decoder, kvs: Sequence[torch.Tensor], batch_invariant: bool
    ) -> None:
        self._windows, self._shape = config.windows, (0, config.heads, config.head_dim)
        self._decoder, self._kvs, self._batch_invariant = decoder, kvs, batch_invariant
        self._blocks = Blocks()
        self._recorded: dict[int, _Recorded] = {}
        self._recordable = True

    def forward(self, batch: InputBatch) -> torch.Tensor | None:
        """As `Decoder.forward`, but the next call overwrites the result; None if no program can run the
        step."""
        if batch.outputs is not None or not self._recordable:
            return None
        embedded = self._decoder.embed(batch.tokens)
        plans = self._plan_attention(batch, embedded.dtype)
        arguments = {window: plan.step_arguments() for window, plan in plans.items()}
        if None in arguments.values():
            return None
        recorded = self._recorded.get(batch.size) or self._record(batch, embedded, plans)
        if recorded is None:
            return None
        for window, calls in recorded.attention.items():
            recorded.program.change(calls, arguments[window] or {})
        recorded.residual.copy_(embedded)
        recorded.positions.copy_(batch.positions)
        recorded.places.copy_(batch.places)
        recorded.program.run()
        self._decoder.progress()
        return recorded.hidden

    def _plan_attention(self, batch: InputBatch, dtype: torch.dtype) -> dict[int | None, CpuAttention]:
        """By the layers' windows."""
        q = torch.empty(self._shape, dtype=dtype)
        return {
            window: plan_attention(q, self._kvs[0], batch.attention, window, self._batch_invariant)
            for window in dict.fromkeys(self._windows)
        }

    def _record(
        self, batch: InputBatch, embedded: torch.Tensor, plans: dict[int | None, CpuAttention]
    ) -> _Recorded | None:
        residual = torch.empty_like(embedded)
        positions, places = batch.positions.clone(), batch.places.clone()
        inputs = replace(batch, positions=positions, places=places)
        try:
            with recorded_calls() as calls, ReusedMemory(self._blocks):
                hidden = self._decoder.run_layers(residual, inputs, self._kvs)
        except NotRecordableError as error:
            log.info("decode steps run kernel by kernel, because the model needs PyTorch's %s", error)
            self._recordable = False
            return None
        program = Program(calls)
        attention: dict[int | None, list[int]] = {window: [] for window in self._windows}
        for kernel in plans[self._windows[0]].kernels:
            for window, call in zip(self._windows, program.calls_of(kernel), strict=True):
                attention[window].append(call)
        recorded = _Recorded(program, residual, positions, places, hidden, attention)
        self._recorded[batch.size] = recorded
        return recorded
