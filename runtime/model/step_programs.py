"""Steps as CPU programs: one parallel region for a forward pass instead of ten for each layer."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ...kernels.attention.cpu import CpuAttention, plan_attention
from ...kernels.common.program import Program
from ...kernels.common.reused_memory import Blocks, NotRecordableError, ReusedMemory
from ...kernels.common.threads import recorded_calls
from .decoder import Decoder
from .decoder_config import DecoderConfig
from .input_batch import InputBatch, StepInputs

log = logging.getLogger(__name__)

MOST_TOKENS = 512
"""Longer steps gain nothing, and their intermediate tensors would stay in memory."""

KEPT = 64
"""programs, of about 100 KB"""
NOTED = 4096
"""sizes of steps"""

_Size = tuple[int, int | None]
"""a step's numbers of tokens and of output tokens (None: all)"""


@dataclass(frozen=True)
class _Recorded:
    program: Program
    residual: torch.Tensor
    """[tokens, hidden]: the embedded tokens, which the program overwrites"""
    batch: InputBatch
    """whose positions, places and outputs the program reads"""
    hidden: torch.Tensor
    """[output tokens, hidden], the result"""
    attention: dict[int | None, list[int]]
    """its calls of attention, by the window of their layer"""


class StepPrograms:
    """The forward pass of steps that restore nothing.

    A program is recorded at the second step of its size. If the model needs operations that are not kernels
    of ours, no step is replayed.
    """

    def __init__(
        self, config: DecoderConfig, decoder: Decoder, kvs: Sequence[torch.Tensor], batch_invariant: bool
    ) -> None:
        self._windows, self._shape = config.windows, (0, config.heads, config.head_dim)
        self._decoder, self._kvs, self._batch_invariant = decoder, kvs, batch_invariant
        self._blocks = Blocks()
        self._recorded: OrderedDict[_Size, _Recorded] = OrderedDict()
        """the last used at the end"""
        self._noted: set[_Size] = set()
        """sizes of earlier steps"""
        self._recordable = True

    def forward(self, inputs: StepInputs) -> torch.Tensor | None:
        """As `Decoder.forward`, but the next call overwrites the result; None if no program can run the
        step."""
        batch = inputs.on_device
        size = batch.size, None if batch.outputs is None else len(batch.outputs)
        if batch.size > MOST_TOKENS or not self._recordable or not self._is_noted(size):
            return None
        embedded = self._decoder.embed(batch.tokens)
        plans = self._plan_attention(batch, embedded.dtype)
        arguments = {window: plan.step_arguments() for window, plan in plans.items()}
        if None in arguments.values():
            return None
        recorded = self._recorded.get(size) or self._record(batch, embedded, plans)
        if recorded is None:
            return None
        self._keep(size, recorded)
        for window, calls in recorded.attention.items():
            recorded.program.change(calls, arguments[window] or {})
        recorded.residual.copy_(embedded)
        _copy(batch, recorded.batch)
        recorded.program.run()
        self._decoder.progress()
        return recorded.hidden

    def _is_noted(self, size: _Size) -> bool:
        """Whether a step had this size before."""
        noted = size in self._noted
        if len(self._noted) >= NOTED:
            self._noted.clear()
        self._noted.add(size)
        return noted

    def _plan_attention(self, batch: InputBatch, dtype: torch.dtype) -> dict[int | None, CpuAttention]:
        """Plans attention for each of the layers' windows."""
        q = torch.empty(self._shape, dtype=dtype)
        return {
            window: plan_attention(q, self._kvs[0], batch.attention, window, self._batch_invariant)
            for window in dict.fromkeys(self._windows)
        }

    def _record(
        self, batch: InputBatch, embedded: torch.Tensor, plans: dict[int | None, CpuAttention]
    ) -> _Recorded | None:
        try:
            with recorded_calls() as calls, ReusedMemory(self._blocks):
                residual, inputs = torch.empty_like(embedded), _with_own_inputs(batch)
                hidden = self._decoder.run_layers(residual, inputs, self._kvs)
        except NotRecordableError as error:
            log.info("steps run kernel by kernel, because the model needs PyTorch's %s", error)
            self._recordable = False
            return None
        program = Program(calls)
        attention: dict[int | None, list[int]] = {window: [] for window in self._windows}
        for kernel in plans[self._windows[0]].kernels:
            for window, call in zip(self._windows, program.calls_of(kernel), strict=True):
                attention[window].append(call)
        return _Recorded(program, residual, inputs, hidden, attention)

    def _keep(self, size: _Size, recorded: _Recorded) -> None:
        """Stores a program as the last used one."""
        self._recorded[size] = recorded
        self._recorded.move_to_end(size)
        if len(self._recorded) > KEPT:
            self._recorded.popitem(last=False)


def _with_own_inputs(batch: InputBatch) -> InputBatch:
    return replace(
        batch,
        positions=torch.empty_like(batch.positions),
        places=torch.empty_like(batch.places),
        outputs=None if batch.outputs is None else torch.empty_like(batch.outputs),
    )


def _copy(batch: InputBatch, to: InputBatch) -> None:
    to.positions.copy_(batch.positions)
    to.places.copy_(batch.places)
    if to.outputs is not None and batch.outputs is not None:
        to.outputs.copy_(batch.outputs)
