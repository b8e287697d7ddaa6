"""How steps run on a device: the interface of executors, and the executor that records nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from ...kernels.common.drafts import Drafts
from ...kernels.common.upload import upload
from ...kernels.sampling import TokenMask, sample
from ...kernels.sampling.batch import HostMask, listed
from ...kernels.sampling.packed_results import PackedResults
from ..messages import StepPlan
from .adapters import AdapterBank
from .input_batch import StepInputs, build_step_inputs
from .interface.cache_spec import number_groups
from .interface.model import Model
from .page_tables import PageTables
from .pooler import Pooler
from .recurrent_states import RecurrentStates
from .slot_states import SlotStates
from .tiers import Restore


@dataclass(frozen=True)
class DeviceState:
    """A model on its device, and what its steps read and write there."""

    model: Model
    kvs: Sequence[torch.Tensor]
    """each layer's cache (see `kv_pool.allocate_pool`)"""
    tables: PageTables
    states: SlotStates
    recurrent: RecurrentStates | None = None
    """the states of recurrent layers; None: the model has none"""
    pooler: Pooler | None = None
    """None: the model generates"""
    adapters: AdapterBank | None = None
    """None: no adapter can be loaded"""

    @property
    def group_kvs(self) -> list[list[list[torch.Tensor]]]:
        """The caches of each group's layers: a list for each shape of pages."""
        number_of = number_groups(self.tables.groups) or [0] * len(self.kvs)
        found: list[dict[object, list[torch.Tensor]]] = [{} for _ in self.tables.groups]
        for kv, group in zip(self.kvs, number_of, strict=True):
            found[group].setdefault((kv.shape, kv.stride()), []).append(kv)
        return [list(shapes.values()) for shapes in found]


class StepExecutor(Protocol):
    """Runs steps one after the other: `build_inputs` → `run` → `sample`."""

    def build_inputs(self, plan: StepPlan, drafts: Drafts | None) -> StepInputs | None:
        """Builds the inputs of a plan whose slots and page tables are set up; None if it has no rows. Call it
        for every plan. drafts: of the plan's rows; None: no row has any"""
        ...

    def run(self, inputs: StepInputs, restore: Restore | None) -> torch.Tensor:
        """Launches the forward pass. Returns the hidden states of the output tokens, [output tokens, hidden],
        which the next step may overwrite. restore: copies the pages that the step reads."""
        ...

    def sample(self, inputs: StepInputs, hidden: torch.Tensor, mask: HostMask | None) -> PackedResults:
        """Launches the sampling of the step that ran last, and records the tokens in the slots, of rows with
        drafts those that are kept. The next step may overwrite the results.

        hidden: as `run` returned it. mask: masks of the host for the rows that sample.
        """
        ...


class EagerExecutor:
    """Launches the kernels of each step one by one. The other executors leave steps to it that they have not
    recorded."""

    def __init__(self, device: DeviceState) -> None:
        self._device = device

    def build_inputs(self, plan: StepPlan, drafts: Drafts | None) -> StepInputs | None:
        device = self._device
        if not plan.rows:
            return None
        needs_all = device.pooler is not None and device.pooler.needs_all
        return build_step_inputs(
            plan.rows, plan.groups, device.tables, device.states, device.recurrent, needs_all, drafts
        )

    def run(self, inputs: StepInputs, restore: Restore | None) -> torch.Tensor:
        arrive = None if restore is None else restore.arrive
        return self._device.model.forward(inputs.on_device, self._device.kvs, arrive)

    def sample(self, inputs: StepInputs, hidden: torch.Tensor, mask: HostMask | None) -> PackedResults:
        model, states = self._device.model, self._device.states
        slots, alternatives = inputs.sampled_slots, inputs.alternatives
        logits = model.logits(hidden[: len(slots)])
        if alternatives is not None and logits.is_cuda:
            alternatives = min(listed(alternatives), states.vocab_size)
        moved = None if mask is None else TokenMask(*upload([mask.index, mask.bits], logits.device))
        sampled = sample(logits, states.gather(slots, moved, inputs.drafts), alternatives)
        states.record(slots, sampled, inputs.drafts)
        return PackedResults.pack(sampled)
