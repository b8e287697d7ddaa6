"""Runs steps: a plan in, a result out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray

from ...kernels.common.upload import upload
from ...kernels.pages import copy_pages
from ...kernels.sampling import TokenMask, sample
from ...kernels.sampling.batch import HostMask, listed
from ...kernels.sampling.packed_results import PackedResults
from ..messages import (
    DiscardPages,
    DropGrammar,
    FlushPages,
    ForgetPages,
    LoadGrammar,
    Row,
    SavePages,
    StepMasks,
    StepPlan,
    StepResult,
)
from .decoder import Decoder
from .devices import HostCopies
from .input_batch import StepInputs, step_inputs
from .page_memory import PageMemory
from .page_tables import PageTables
from .prompt_logprobs import prompt_logprobs
from .replays import Replays
from .running_step import MasksSource, RunningStep, SampledRows, ScoredPrompt
from .slot_states import SlotStates
from .tiers import Restore, Transfers

NO_REPLAYS = Replays()


class Runner:
    """Owns the contents of pages and the state of slots.

    kvs: each layer's cache (see `kv_pool.allocate_pool`).
    """

    def __init__(
        self,
        decoder: Decoder,
        kvs: Sequence[torch.Tensor],
        tables: PageTables,
        states: SlotStates,
        vocab_size: int,
        transfers: Transfers | None = None,
        page_memory: PageMemory | None = None,
        replays: Replays = NO_REPLAYS,
    ) -> None:
        self._decoder = decoder
        self._kvs = kvs
        self._tables = tables
        self._states = states
        self._vocab_size = vocab_size
        self._transfers = transfers
        self._page_memory = page_memory
        self._replays = replays
        self._idle_since = 0.0

    def after_each_layer(self, progress: Callable[[], None]) -> None:
        """Calls `progress` while a step is computed, as a sign of life in long steps."""
        self._decoder.progress = progress

    def load_grammar(self, message: LoadGrammar) -> None:
        self._states.load_grammar(message)

    def drop_grammar(self, message: DropGrammar) -> None:
        self._states.drop_grammar(message)

    @torch.inference_mode()
    def save_pages(self, message: SavePages) -> None:
        """Begins to save pages. They are published with the next step, or by `publish_saves`."""
        self._store_transfers().save_computed(message.saves)

    @property
    def is_saving(self) -> bool:
        """Whether pages are being saved that no step publishes yet."""
        return self._transfers is not None and self._transfers.is_saving

    def saves_copied(self) -> bool:
        """Whether `publish_saves` returns without waiting for the device."""
        return self._store_transfers().saves_copied()

    def publish_saves(self) -> None:
        """Lets the page store find the pages that are being saved."""
        transfers = self._store_transfers()
        transfers.settle(transfers.begun_saves())

    def forget_pages(self, message: ForgetPages | DiscardPages) -> None:
        self._store_transfers().forget(message)

    @torch.inference_mode()
    def flush_pages(self, message: FlushPages) -> None:
        self._store_transfers().flush(message)

    def run(self, plan: StepPlan, masks: MasksSource) -> StepResult:
        """A whole step. Calls `masks` only if a row that samples has `host_mask`, after the forward pass."""
        step = self.start(plan)
        self.sample(step, masks)
        return self.finish(step)

    @torch.inference_mode()
    def start(self, plan: StepPlan) -> RunningStep:
        """Launches a step. Later steps may start before it is finished, but not before it is sampled.

        A GPU computes it meanwhile; on a CPU it is computed on return, except rows that wait for masks.
        """
        started = time.perf_counter()
        restore = self._prepare(plan)
        settle = self._settling(plan, restore)
        sampled = self._replays.next(plan)
        if sampled is not None:
            return _sampled_step(plan, len(plan.rows), sampled, settle, started)
        if not plan.rows:
            return RunningStep(plan, 0, [], None, [], None, settle, started)
        inputs = step_inputs(plan.rows, plan.groups, self._tables, self._states.sampling.last_tokens)
        if restore is None and not inputs.target_rows and _samples_without_masks(plan):
            sampled = self._replays.whole(plan, inputs)
            if sampled is not None:
                return _sampled_step(plan, inputs.size, sampled, settle, started)
        hidden = self._forward(inputs, restore)
        rows = [plan.rows[row] for row in inputs.sampled_rows]
        prompts = self._score_prompts([plan.rows[row] for row in inputs.target_rows], hidden[len(rows) :])
        masked = [row.slot for row in rows if row.host_mask]
        launch = partial(self._sample, inputs.sampled_slots, masked, hidden[: len(rows)]) if rows else None
        computed = None if rows or prompts else HostCopies([hidden[:0]])
        step = RunningStep(plan, inputs.size, prompts, launch, masked, computed, settle, started)
        if not masked:
            step.launch_sampling(None)
        return step

    @torch.inference_mode()
    def sample(self, step: RunningStep, masks: MasksSource) -> None:
        step.sample(masks)

    @torch.inference_mode()
    def finish(self, step: RunningStep) -> StepResult:
        """Waits for the tokens of the oldest running step."""
        result = step.finish(self._idle_since)
        self._idle_since = time.perf_counter()
        return result

    def _forward(self, inputs: StepInputs, restore: Restore | None) -> torch.Tensor:
        if restore is None or restore.arrive_at_once():
            replayed = self._replays.forward(inputs)
            if replayed is not None:
                return replayed
        arrive = None if restore is None else restore.arrive
        return self._decoder.forward(inputs.on_device, self._kvs, arrive)

    def _prepare(self, plan: StepPlan) -> Restore | None:
        for setup in plan.setups:
            self._tables.clear(setup.slot)
            self._states.set_up(setup)
        for row in plan.rows:
            if row.new_pages:
                pages = np.frombuffer(row.new_pages, np.int32)
                self._decoder.cover(self._tables.append(row.slot, pages))
                if self._page_memory is not None:
                    self._page_memory.used(int(pages.max()))
        assert self._transfers or not (plan.saves or plan.restores), "the process has no page store"
        restore = self._transfers.begin(plan, lambda: self._written(plan)) if self._transfers else None
        if plan.copies:
            moves = [(copy.source, copy.destination) for copy in plan.copies]
            copy_pages(self._kvs, self._tables.page_size, *zip(*moves, strict=True))
        return restore

    def _written(self, plan: StepPlan) -> list[int]:
        """The pages that the rows and copies of a step write."""
        ranges = [(row.slot, row.start, row.start + (len(row.tokens) // 4 or 1)) for row in plan.rows]
        return [
            *(copy.destination for copy in plan.copies),
            *chain.from_iterable(self._tables.pages(*each).tolist() for each in ranges),
        ]

    def _settling(self, plan: StepPlan, restore: Restore | None) -> Callable[[], float]:
        """A function for the end of the step: it waits for copies of pages, publishes saved ones, and returns
        the milliseconds that restoring took."""
        transfers = self._transfers
        saves = None if transfers is None else transfers.begun_saves()

        def settle() -> float:
            restored_ms = 0.0 if restore is None else restore.finish()
            if transfers is not None and saves is not None:
                transfers.settle(saves, plan.fetches_over)
            return restored_ms

        return settle

    def _store_transfers(self) -> Transfers:
        assert self._transfers is not None, "the process has no page store"
        return self._transfers

    def _score_prompts(self, rows: Sequence[Row], hidden: torch.Tensor) -> list[ScoredPrompt]:
        """hidden: of the tokens with targets of each of `rows`"""
        scored = []
        start = 0
        for row in rows:
            targets = np.frombuffer(row.targets, np.int32)
            states = hidden[start : start + len(targets)]
            start += len(targets)
            alternatives = int(self._states.prompt_logprobs[row.slot])
            copies = prompt_logprobs(states, self._decoder.logits, self._vocab_size, targets, alternatives)
            scored.append(ScoredPrompt(row, copies))
        return scored

    def _sample(
        self, slots: NDArray[np.int32], masked: list[int], hidden: torch.Tensor, masks: StepMasks | None
    ) -> SampledRows:
        """Samples one token for each of the rows of `slots`, with hidden states [rows, hidden].

        masked: the slots of rows with masks of the host
        """
        wanted = self._states.logprobs[slots]
        alternatives = self._states.alternatives(slots)
        mask = None if masks is None else _host_mask(masks, slots, self._vocab_size)
        results = self._replays.sampling(slots, hidden, mask, alternatives)
        if results is None:
            results = self._sample_one_by_one(slots, hidden, mask, alternatives)
        late = masked if masks is None else []
        return SampledRows(slots, wanted, results, HostCopies([results.buffer]), late)

    def _sample_one_by_one(
        self,
        slots: NDArray[np.int32],
        hidden: torch.Tensor,
        mask: HostMask | None,
        alternatives: int | None,
    ) -> PackedResults:
        """Launches the kernels of sampling one by one."""
        logits = self._decoder.logits(hidden)
        if alternatives is not None and logits.is_cuda:
            alternatives = min(listed(alternatives), self._vocab_size)
        moved = None if mask is None else TokenMask(*upload([mask.index, mask.bits], logits.device))
        sampled = sample(logits, self._states.gather(slots, moved), alternatives)
        self._states.sampling.record(slots, sampled.tokens)
        return PackedResults.pack(sampled)


def _samples_without_masks(plan: StepPlan) -> bool:
    return any(row.sample for row in plan.rows) and not any(row.sample and row.host_mask for row in plan.rows)


def _sampled_step(
    plan: StepPlan, tokens: int, sampled: SampledRows, settle: Callable[[], float], started: float
) -> RunningStep:
    """A step that has been sampled."""
    step = RunningStep(plan, tokens, [], lambda _: sampled, [], None, settle, started)
    step.launch_sampling(None)
    return step


def _host_mask(message: StepMasks, slots: NDArray[np.int32], vocab_size: int) -> HostMask:
    """The masks for rows that sample for `slots`."""
    mask_of_slot = {int(slot): at for at, slot in enumerate(np.frombuffer(message.slots, np.int32))}
    index = np.array([mask_of_slot.get(int(slot), -1) for slot in slots], np.int32)
    bits = np.frombuffer(message.masks, np.int32).copy()
    return HostMask(index, bits.reshape(len(mask_of_slot), -(-vocab_size // 32)))
