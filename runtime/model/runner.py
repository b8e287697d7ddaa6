"""Runs steps: a plan in, a result out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray

from ...kernels.common.drafts import Drafts
from ...kernels.pages import copy_pages
from ...kernels.sampling.batch import HostMask
from ..errors import ConfigError
from ..messages import (
    TOKEN_BYTES,
    AdapterRead,
    DropAdapter,
    DropGrammar,
    ForgetReplies,
    LoadGrammar,
    ReadAdapter,
    StepMasks,
    StepPlan,
    StepResult,
)
from .devices import HostCopies
from .drafts import DraftController, Drafter
from .executor import DeviceState, StepExecutor
from .input_batch import StepInputs
from .page_memory import PageMemory
from .pooler import RowVectors
from .prompt_logprobs import prompt_logprobs
from .ranks import ONE_RANK, Ranks, agree_on_masks, agree_on_result, wait_for_all
from .running_step import MasksSource, RunningStep, ScoredPrompt
from .tiers import PageMover, StepMoves


class Runner:
    """Owns the contents of pages and the state of slots. `executor` computes the steps of the same device."""

    def __init__(
        self,
        device: DeviceState,
        executor: StepExecutor,
        mover: PageMover | None = None,
        page_memory: Sequence[Sequence[PageMemory]] = (),
        drafter: Drafter | None = None,
        controller: DraftController | None = None,
        ranks: Ranks = ONE_RANK,
    ) -> None:
        """page_memory: on a CPU, of each group's layers. drafter: None: no row has drafts. controller: None:
        all drafts are computed"""
        self._model, self._kvs, self._group_kvs = device.model, device.kvs, device.group_kvs
        self._tables, self._states, self._recurrent = device.tables, device.states, device.recurrent
        self._adapters = device.adapters
        self._executor, self._pooler = executor, device.pooler
        self.mover = mover
        """moves pages to and from the page store; None: there is no page store"""
        self.pools = device.pooler is not None
        """whether steps make vectors and sample no tokens"""
        self._page_memory, self._drafter, self._controller = page_memory, drafter, controller
        self._ranks = ranks
        self._idle_since = 0.0
        self._sampled: RunningStep | None = None
        """with a drafter: the last step that sampled, until it is known which of its tokens are kept"""

    @contextmanager
    def drafting_by(self, drafter: Drafter) -> Iterator[None]:
        """Context in which another drafter makes drafts, which are all computed."""
        own = self._drafter, self._controller
        self._drafter, self._controller = drafter, None
        try:
            yield
        finally:
            self._take_tokens()
            self._drafter, self._controller = own

    @property
    def needs_tokens(self) -> bool:
        """Whether the runner makes drafts. For these it needs the tokens of the step before."""
        return self._drafter is not None

    @property
    def starts_alone(self) -> bool:
        """Whether a step can start only when the step before is finished: for drafts, or because this is one
        of several ranks. While such a rank launches a step, its host may have to wait for the GPU, and that
        for another rank, which may wait for this one's result of the step before."""
        return self.needs_tokens or self._ranks.rank.total > 1

    def after_each_layer(self, progress: Callable[[], None]) -> None:
        """Calls `progress` while a step is computed, as a sign of life in long steps."""
        self._model.progress = progress

    def forget_replies(self, order: ForgetReplies) -> None:
        assert self._drafter is not None, "the process makes no drafts"
        self._drafter.forget(order.scope, order.namespace)

    def load_grammar(self, message: LoadGrammar) -> None:
        self._states.load_grammar(message)

    def drop_grammar(self, message: DropGrammar) -> None:
        self._states.drop_grammar(message)

    def read_adapter(self, message: ReadAdapter) -> AdapterRead:
        assert self._adapters is not None, "the process has no places for adapters"
        try:
            digest = self._adapters.load(message.place, Path(message.path), message.name)
            return AdapterRead(message.place, digest)
        except (ConfigError, OSError, torch.OutOfMemoryError, MemoryError) as error:
            return AdapterRead(message.place, "", str(error))

    def drop_adapter(self, message: DropAdapter) -> None:
        assert self._adapters is not None, "the process has no places for adapters"
        self._adapters.drop(message.place)

    def run(self, plan: StepPlan, masks: MasksSource) -> StepResult:
        """Runs a whole step. If a sampling row has `host_mask`, calls `masks` after the forward pass to get
        its mask."""
        step = self.start(plan)
        self.sample(step, masks)
        return self.finish(step)

    @torch.inference_mode()
    def start(self, plan: StepPlan) -> RunningStep:
        """Launches a step. Later steps may start before it is finished, but not before it is sampled.

        A GPU computes it meanwhile; on a CPU it is computed on return, except rows that wait for masks.
        """
        started = time.perf_counter()
        self._take_tokens()
        moves = self._prepare(plan)
        step = RunningStep(plan, moves, started)
        step.proposed = self._propose(plan)
        step.drafts = self._choose(plan, step.proposed)
        inputs = step.inputs = self._executor.build_inputs(plan, step.drafts)
        if inputs is None:
            return step
        hidden = step.hidden = self._executor.run(inputs, None if moves is None else moves.restore)
        if self._recurrent is not None:
            self._recurrent.save(plan.rows)
        if self._pooler is not None:
            step.vectors = RowVectors(plan.rows, self._pooler.pool(inputs, hidden))
            step.copies = step.vectors.copies
            return step
        if inputs.target_rows:
            step.prompts = self._score_prompts(inputs, hidden)
        if not len(inputs.sampled_slots):
            step.copies = step.prompts[-1].copies if step.prompts else HostCopies([hidden[:0]])
        elif not inputs.masked_slots:
            self._sample(step, None)
        return step

    def sample(self, step: RunningStep, masks: MasksSource) -> None:
        """Samples the step if some of its rows have masks from the host, for which it waits."""
        if step.inputs is not None and step.inputs.masked_slots:
            received = agree_on_masks(self._ranks, step.wait_for(masks))
            with torch.inference_mode():
                self._sample(step, received)

    def wait_for_ranks(self) -> None:
        """Returns when all ranks have handled the same messages as this one."""
        wait_for_all(self._ranks)

    def finish(self, step: RunningStep) -> StepResult:
        """Waits for the tokens of the oldest running step."""
        result = step.finish(self._idle_since)
        agree_on_result(self._ranks, result)
        if step is self._sampled:
            self._take_tokens()
        if self._controller is not None and step.inputs is not None:
            step.report_cost(self._controller.costs, result.elapsed_ms)
        if self.mover is not None and step.moves is not None:
            result.restored_ms = self.mover.finish(step.moves)
        self._idle_since = time.perf_counter()
        return result

    def _propose(self, plan: StepPlan) -> Drafts | None:
        """The drafts of the plan's rows; None if no row has any."""
        if self._drafter is None:
            return None
        rows = sum(row.samples > 1 and not row.targets for row in plan.rows)
        if not rows:
            return None
        share = self._states.max_drafts // rows
        most = [0 if row.targets else min(share, max(0, row.samples - 1)) for row in plan.rows]
        slots = np.array([row.slot for row in plan.rows], np.int32)
        drafts = self._drafter.propose(slots, np.array(most, np.int32))
        drafts = self._states.cut_drafts(drafts)
        return drafts if len(drafts.tokens) else None

    def _choose(self, plan: StepPlan, proposed: Drafts | None) -> Drafts | None:
        """The proposed drafts that are worth their time."""
        if proposed is None or self._controller is None:
            return proposed
        tokens = sum(len(row.tokens) // TOKEN_BYTES or 1 for row in plan.rows)
        rows = sum(row.samples > 0 for row in plan.rows)
        return self._controller.choose(proposed, tokens, rows)

    def _take_tokens(self) -> None:
        """Waits for the last step that sampled, and adds the drafts that are kept to the slots' lengths."""
        if self._sampled is None or self._drafter is None:
            return
        kept = self._sampled.read_kept()
        if self._sampled.inputs is not None and self._sampled.inputs.drafts is not None:
            self._tables.accept(kept.sampled_slots.astype(np.int64), kept.more)
            self._states.sampling.accept(kept.sampled_slots, kept.more)
        self._states.undrafted[kept.sampled_slots] = kept.more < 0
        if (kept.more < 0).any():
            self._compute_again(self._sampled.plan, kept.sampled_slots[kept.more < 0])
        self._drafter.add(kept.slots, kept.tokens)
        if self._controller is not None and self._sampled.proposed is not None:
            self._controller.learn(self._sampled.proposed, kept.counts, kept.tokens)
        self._sampled = None

    @torch.inference_mode()
    def _compute_again(self, plan: StepPlan, slots: NDArray[np.int32]) -> None:
        """Computes the chunks of slots without drafts. The next row of each begins with its last token."""
        rows = [replace(row, samples=0) for row in plan.rows if row.tokens and row.slot in slots]
        inputs = self._executor.build_inputs(StepPlan(plan.step, rows), None)
        if inputs is not None:
            self._executor.run(inputs, None)
        for row in rows:
            self._tables.lengths[row.slot] -= 1
            self._states.sampling.last_tokens[row.slot] = int(np.frombuffer(row.tokens, np.int32)[-1])

    def _prepare(self, plan: StepPlan) -> StepMoves | None:
        for end in plan.ended:
            assert self._drafter is not None, "the process makes no drafts"
            self._drafter.end(end)
        for setup in plan.setups:
            if self._drafter is not None:
                self._drafter.set_up(setup)
            if self._controller is not None and not setup.context_start:
                self._controller.start(setup.slot)
            self._tables.clear(setup.slot)
            self._states.set_up(setup)
            if self._recurrent is not None:
                self._recurrent.set_up(setup.slot, setup.state_place)
        for row in plan.rows:
            for group, packed in enumerate((row.new_pages, *row.new_window_pages)):
                if packed:
                    self._add_pages(row.slot, group, np.frombuffer(packed, np.int32))
        assert self.mover or not (plan.saves or plan.restores), "the process has no page store"
        moves = self.mover.begin(plan, lambda: self._find_written_pages(plan)) if self.mover else None
        if self._recurrent is not None:
            self._recurrent.load(plan.rows)
        for group, kvs in enumerate(self._group_kvs):
            copies = [(copy.source, copy.destination) for copy in plan.copies if copy.group == group]
            for of_shape in kvs if copies else ():
                copy_pages(of_shape, self._tables.page_size, *zip(*copies, strict=True))
        return moves

    def _add_pages(self, slot: int, group: int, pages: NDArray[np.int32]) -> None:
        tokens = self._tables.append(slot, pages, group)
        if group == 0:
            self._model.cover(tokens)
        for memory in self._page_memory[group] if self._page_memory else ():
            memory.prepare(int(pages.max()))

    def _find_written_pages(self, plan: StepPlan) -> Iterator[tuple[int, int]]:
        """The group and number of the pages that the rows and copies of a step write."""
        for copy in plan.copies:
            yield copy.group, copy.destination
        for row in plan.rows:
            for group in range(len(self._tables.groups)):
                yield from ((group, page) for page in self._tables.find_written(row, group).tolist())

    def _score_prompts(self, inputs: StepInputs, hidden: torch.Tensor) -> list[ScoredPrompt]:
        """Scores prompt tokens. hidden: the hidden states of all output tokens"""
        scored = []
        start = len(inputs.sampled_slots)
        for row in inputs.target_rows:
            targets = np.frombuffer(row.targets, np.int32)
            states = hidden[start : start + len(targets)]
            start += len(targets)
            alternatives = int(self._states.prompt_logprobs[row.slot])
            head, vocab_size = self._model.logits, self._states.vocab_size
            copies = prompt_logprobs(states, head, vocab_size, targets, alternatives)
            scored.append(ScoredPrompt(row, copies))
        return scored

    def _sample(self, step: RunningStep, masks: StepMasks | None) -> None:
        """Launches sampling. masks: None if no row has masks of the host, or if they did not come in time"""
        inputs, hidden = step.inputs, step.hidden
        assert inputs is not None and hidden is not None
        mask = None if masks is None else _host_mask(masks, inputs.sampled_slots, self._states.vocab_size)
        step.results = self._executor.sample(inputs, hidden, mask)
        step.copies = HostCopies([step.results.buffer])
        step.late = inputs.masked_slots if masks is None else ()
        self._sampled = None if self._drafter is None else step


def _host_mask(message: StepMasks, slots: NDArray[np.int32], vocab_size: int) -> HostMask:
    """The masks for rows that sample for `slots`."""
    mask_of_slot = {int(slot): at for at, slot in enumerate(np.frombuffer(message.slots, np.int32))}
    index = np.array([mask_of_slot.get(int(slot), -1) for slot in slots], np.int32)
    bits = np.frombuffer(message.masks, np.int32).copy()
    return HostMask(index, bits.reshape(len(mask_of_slot), -(-vocab_size // 32)))
