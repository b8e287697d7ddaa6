"""Forward passes as CPU programs: one parallel region instead of ten for each layer."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...kernels.attention import Reach
from ...kernels.attention.cpu import OF_STEP, CpuAttention, plan_attention
from ...kernels.common.drafts import DraftRows
from ...kernels.common.program import Program
from ...kernels.common.reused_memory import Blocks, NotRecordableError, ReusedMemory
from ...kernels.common.step_tokens import StepTokens, feed_tokens
from ...kernels.common.threads import ParallelKernel, recorded_calls
from .executor import DeviceState
from .input_batch import StepInputs
from .interface.cache_spec import number_groups
from .interface.input_batch import GroupInputs, InputBatch

log = logging.getLogger(__name__)

MAX_TOKENS = 512
"""Longer steps have no program: they gain nothing, and their intermediate tensors would stay in memory."""

MAX_PROGRAMS = 128
"""A program takes about 100 KB, so all of them take about 13 MB."""

AfterForward = Callable[[torch.Tensor], None]
"""launches kernels after the forward pass, given its hidden states [output tokens, hidden]"""
_LayerKind = tuple[int, Reach, bool]
"""a layer's page group and reach, and whether it attends only from output tokens, as the last layer does"""
_Size = tuple[int, int | None, bool, bool]
"""a step's numbers of tokens and of output tokens (None: all), whether kernels follow the forward pass, and
whether rows have adapters"""


@dataclass(frozen=True)
class RecordedStep:
    program: Program
    batch: InputBatch
    """the batch whose tokens, positions, places and outputs the program reads"""
    slots: torch.Tensor
    """int32 [tokens]: see `StepInputs.slots`"""
    hidden: torch.Tensor
    """[output tokens, hidden], the result of the forward pass"""
    attention: dict[_LayerKind, NDArray[np.int64]]
    """where the program has the arguments `OF_STEP` of attention in layers of each kind"""
    _attended: dict[_LayerKind, list[int]] = field(default_factory=dict)
    """these arguments in the last step"""

    @cached_property
    def arrays(self) -> list[NDArray[Any]]:
        """Where the program reads tokens, slots, positions, and the places of each page group."""
        batch = self.batch
        places = [group.places for group in batch.groups]
        return [each.numpy() for each in (batch.tokens, self.slots, batch.positions, *places)]

    def load(self, inputs: StepInputs) -> None:
        """Copies a step's inputs to where the program reads them."""
        batch = self.batch
        given = inputs.tokens, inputs.slots, inputs.positions, *inputs.places
        for into, values in zip(self.arrays, given, strict=True):
            into[:] = values
        if batch.outputs is not None:
            batch.outputs.numpy()[:] = inputs.outputs
        self.load_adapters(inputs.group_adapters(inputs.size, len(inputs.outputs)))

    def load_decode(
        self, tokens: StepTokens, places: Sequence[NDArray[np.int64]], drafts: DraftRows | None
    ) -> None:
        """As `load`, for rows in decode without adapters. places: of each page group"""
        into_tokens, into_slots, into_positions, *into_places = self.arrays
        into_positions[:], into_slots[:] = tokens.positions, tokens.slots
        for into, of_group in zip(into_places, places, strict=True):
            into[:] = of_group
        if drafts is not None:  # the program replaces each row's first token
            into_tokens[1:] = drafts.tokens[:-1]

    def load_adapters(self, grouped: Sequence[NDArray[np.int32]]) -> None:
        """grouped: see `StepInputs.group_adapters`"""
        for target, values in zip((self.batch.adapters, self.batch.output_adapters), grouped, strict=False):
            if target is not None:
                target.numpy()[:] = values

    def set_attention(self, plans: Mapping[_LayerKind, CpuAttention]) -> None:
        for kind, places in self.attention.items():
            arguments = plans[kind].step_arguments()
            if arguments != self._attended.get(kind):
                self.program.change(places, arguments)
                self._attended[kind] = arguments


@dataclass(frozen=True)
class LoadedStep:
    """A recorded program that has a step's inputs."""

    recorded: RecordedStep
    plans: dict[_LayerKind, CpuAttention]


class RecordedSteps:
    """The programs of forward passes that restore nothing.

    The first step of each size records its program and then runs it. Recording takes about 5 ms for 28
    layers. It pays even for one step, because kernels that Python starts one by one wake the threads each
    time. A step that needs an operation of PyTorch has no program.
    """

    def __init__(
        self,
        device: DeviceState,
        batch_invariant: bool,
    ) -> None:
        model, kvs = device.model, device.kvs
        spec = model.config.cache_spec
        groups = number_groups(device.tables.groups) or [0] * spec.layers
        *others, last = zip(groups, spec.reaches, strict=True)
        self._layers: list[_LayerKind] = [*((*kind, False) for kind in others), (*last, True)]
        self._kv_of = dict(zip(self._layers, kvs, strict=True))
        self._model, self._kvs, self._batch_invariant = model, kvs, batch_invariant
        self._last_tokens = device.states.sampling.last_tokens
        self._q = torch.empty(0, spec.heads, spec.head_dim, dtype=model.dtype)
        self._blocks = Blocks()
        self._recorded: OrderedDict[_Size, RecordedStep] = OrderedDict()
        """programs by size, the last used one at the end"""
        self._most_tokens = self._most_outputs = MAX_TOKENS
        """The most tokens of a step that has a program, and the most output tokens of a step in which other
        kernels follow the forward pass."""

    def forward(self, inputs: StepInputs) -> torch.Tensor | None:
        """Runs `Model.forward` as a program; None if no program can run the step. The next call overwrites
        the result."""
        step = self.load(inputs)
        if step is None:
            return None
        self.run(step.recorded)
        return step.recorded.hidden

    def load(self, inputs: StepInputs, after_forward: AfterForward | None = None) -> LoadedStep | None:
        """Prepares the program of a step, which ends with the kernels of `after_forward`. None if the step
        can have no program.

        `after_forward` is called when the program is recorded, and must be the same each time.
        """
        outputs, is_followed = len(inputs.outputs), after_forward is not None
        if inputs.size > self._most_tokens or (is_followed and outputs > self._most_outputs):
            return None
        has_adapters = inputs.adapters is not None
        size = inputs.size, None if inputs.all_in_order else outputs, is_followed, has_adapters
        plans = self._plan_attention(inputs)
        recorded = self._recorded.get(size) or self._record(inputs, plans, after_forward)
        if recorded is None:
            return None
        self._keep(size, recorded)
        recorded.set_attention(plans)
        recorded.load(inputs)
        return LoadedStep(recorded, plans)

    def find_decode(self, tokens: int, has_adapters: bool) -> RecordedStep | None:
        """The program of steps of so many tokens at each of which the model samples; None if there is none
        yet."""
        size = tokens, None, True, has_adapters
        recorded = self._recorded.get(size)
        if recorded is not None:
            self._keep(size, recorded)
        return recorded

    def run(self, recorded: RecordedStep) -> None:
        recorded.program.run()
        self._model.progress()

    def _layer_kinds(self, inputs: StepInputs) -> list[_LayerKind]:
        """The kind of each layer that computes attention. In a step without output tokens the last layer
        computes none."""
        return self._layers if len(inputs.outputs) else self._layers[:-1]

    def _plan_attention(self, inputs: StepInputs) -> dict[_LayerKind, CpuAttention]:
        plans = {}
        for kind in dict.fromkeys(self._layer_kinds(inputs)):
            group, reach, outputs_only = kind
            kv, batch = self._kv_of[kind], inputs.attention[group]
            plans[kind] = plan_attention(self._q, kv, batch, reach, self._batch_invariant, outputs_only)
        return plans

    def _record(
        self, inputs: StepInputs, plans: dict[_LayerKind, CpuAttention], after_forward: AfterForward | None
    ) -> RecordedStep | None:
        hidden: torch.Tensor | None = None
        try:
            with recorded_calls() as calls, ReusedMemory(self._blocks):
                batch, slots = _own_inputs(inputs)
                feed_tokens(batch.tokens, slots, self._last_tokens)
                hidden = self._model.forward(batch, self._kvs)
                if after_forward is not None:
                    after_forward(hidden)
        except NotRecordableError as error:
            if hidden is None:
                self._leave_out_tokens(inputs.size, error)
            else:
                self._leave_out_outputs(len(inputs.outputs), error)
            return None
        program = Program(calls)
        calls_of: dict[_LayerKind, list[int]] = {kind: [] for kind in plans}
        for kernel in set[ParallelKernel]().union(*(plan.kernels for plan in plans.values())):
            for kind, call in zip(self._layer_kinds(inputs), program.calls_of(kernel), strict=True):
                calls_of[kind].append(call)
        attention = {kind: program.places_of(calls, OF_STEP) for kind, calls in calls_of.items()}
        return RecordedStep(program, batch, slots, hidden, attention)

    def _leave_out_tokens(self, tokens: int, error: NotRecordableError) -> None:
        if self._most_tokens == MAX_TOKENS:
            log.debug("steps of %d tokens run kernel by kernel: PyTorch's %s is part of them", tokens, error)
        self._most_tokens = tokens - 1

    def _leave_out_outputs(self, outputs: int, error: NotRecordableError) -> None:
        if self._most_outputs == MAX_TOKENS:
            log.debug("%d rows are sampled kernel by kernel: PyTorch's %s is part of it", outputs, error)
        self._most_outputs = outputs - 1

    def _keep(self, size: _Size, recorded: RecordedStep) -> None:
        """Stores a program as the most recently used one."""
        self._recorded[size] = recorded
        self._recorded.move_to_end(size)
        if len(self._recorded) > MAX_PROGRAMS:
            self._recorded.popitem(last=False)


def _own_inputs(inputs: StepInputs) -> tuple[InputBatch, torch.Tensor]:
    """A batch for the inputs of steps of this size, and the slots of their tokens."""
    tokens, outputs = inputs.size, None if inputs.all_in_order else len(inputs.outputs)
    batch = InputBatch(
        tokens=torch.empty(tokens, dtype=torch.int32),
        positions=torch.empty(tokens, dtype=torch.int64),
        groups=tuple(
            GroupInputs(torch.empty(tokens, dtype=torch.int64), attention) for attention in inputs.attention
        ),
        layer_groups=inputs.layer_groups,
        outputs=None if outputs is None else torch.empty(outputs, dtype=torch.int64),
        adapters=None if inputs.adapters is None else torch.empty(1 + 4 * tokens, dtype=torch.int32),
        output_adapters=None
        if inputs.adapters is None or outputs is None
        else torch.empty(1 + 4 * outputs, dtype=torch.int32),
    )
    return batch, torch.empty(tokens, dtype=torch.int32)
