"""Runs steps: a plan in, a result out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ...kernels.common.upload import upload
from ...kernels.pages import copy_pages
from ...kernels.sampling import Sampled, TokenMask, sample
from ..automaton_format import NO_AUTOMATON
from ..messages import (
    DiscardPages,
    DropGrammar,
    FlushPages,
    ForgetPages,
    LoadGrammar,
    Logprobs,
    Row,
    RowError,
    RowLogprobs,
    RowPromptLogprobs,
    SavePages,
    StepMasks,
    StepPlan,
    StepResult,
)
from .decoder import Decoder
from .devices import to_host
from .input_batch import InputBatch, build_input_batch
from .page_memory import PageMemory
from .page_tables import PageTables
from .prompt_logprobs import prompt_logprobs
from .slot_states import NONE, SlotStates
from .tiers import Restore, Transfers

NOT_A_NUMBER = "The model's logits for this request are not numbers (NaN)."
NOTHING_ALLOWED = "No token is allowed here: masks, banned tokens and biases exclude them all."
MASK_LATE = "The grammar mask of this request did not come in time."

MasksSource = Callable[[], StepMasks | None]
"""waits for the masks of the running step; None: they did not come in time"""

ForwardReplay = Callable[[InputBatch], torch.Tensor | None]
"""replays the forward pass and returns hidden states; None if no recorded step fits"""
SamplingReplay = Callable[[NDArray[np.int32], torch.Tensor], tuple[torch.Tensor, Sampled] | None]
"""replays sampling for slots and hidden states; returns logits and tokens, which it has recorded"""


@dataclass(frozen=True)
class _Choice:
    """Tokens sampled from logits float32 [rows, vocab], and recorded."""

    logits: torch.Tensor
    sampled: Sampled
    late: Sequence[int] = ()
    """slots whose masks did not come in time"""
    waited: float = 0.0
    """seconds until the masks came"""


@dataclass(frozen=True)
class _Outcome:
    """Sampled tokens of the rows of `slots`, int32 [rows], on the host."""

    slots: NDArray[np.int32]
    tokens: NDArray[np.int32]
    states: NDArray[np.int32]
    logprobs: list[RowLogprobs]
    errors: list[RowError]
    waited: float
    """seconds until the masks came"""


NOTHING = np.zeros(0, np.int32)


class Runner:
    """Owns the contents of pages and the state of slots.

    kvs: one [2, kv_heads, num_pages, page_size, cell] tensor for each layer.
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
    ) -> None:
        self._decoder = decoder
        self._kvs = kvs
        self._tables = tables
        self._states = states
        self._vocab_size = vocab_size
        self._transfers = transfers
        self._page_memory = page_memory
        self._replay: ForwardReplay = lambda _: None
        self._replay_sampling: SamplingReplay = lambda *_: None

    def replay_with(self, forward: ForwardReplay, sampling: SamplingReplay = lambda *_: None) -> None:
        """Uses graphs or programs for the parts of steps that they can run; they return None for others."""
        self._replay, self._replay_sampling = forward, sampling

    def after_each_layer(self, progress: Callable[[], None]) -> None:
        """Calls `progress` while a step is computed, as a sign of life in long steps."""
        self._decoder.progress = progress

    def load_grammar(self, message: LoadGrammar) -> None:
        self._states.load_grammar(message)

    def drop_grammar(self, message: DropGrammar) -> None:
        self._states.drop_grammar(message)

    @torch.inference_mode()
    def save_pages(self, message: SavePages) -> None:
        self._store_transfers().save_computed(message.saves)

    def forget_pages(self, message: ForgetPages | DiscardPages) -> None:
        self._store_transfers().forget(message)

    @torch.inference_mode()
    def flush_pages(self, message: FlushPages) -> None:
        self._store_transfers().flush(message)

    @torch.inference_mode()
    def run(self, plan: StepPlan, masks: MasksSource) -> StepResult:
        """Calls `masks` only if a row that samples has `host_mask`, after computing its logits."""
        started = time.perf_counter()
        restore = self._prepare(plan)
        result = self._run(plan, masks, started, restore)
        if restore is not None:
            result.restored_ms = restore.finish()
        if self._transfers is not None:
            self._transfers.settle(plan.fetches_over)
        return result

    def _run(self, plan: StepPlan, masks: MasksSource, started: float, restore: Restore | None) -> StepResult:
        if not plan.rows:
            return _result(plan.step, _nothing_sampled(), [], 0, started)
        batch = build_input_batch(plan.rows, plan.groups, self._tables, self._states.sampling.last_tokens)
        hidden = self._forward(batch, restore)
        to_sample = len(batch.sampled_rows)
        prompts, errors = self._prompt_logprobs(plan.rows, batch, hidden[to_sample:])
        outcome = _nothing_sampled()
        if to_sample:
            rows = [plan.rows[row] for row in batch.sampled_rows]
            outcome = self._sample(rows, hidden[:to_sample], masks)
        outcome.errors.extend(errors)
        return _result(plan.step, outcome, prompts, batch.size, started)

    def _forward(self, batch: InputBatch, restore: Restore | None) -> torch.Tensor:
        if restore is not None:
            return self._decoder.forward(batch, self._kvs, restore.arrive)
        replayed = self._replay(batch)
        return self._decoder.forward(batch, self._kvs) if replayed is None else replayed

    def _prepare(self, plan: StepPlan) -> Restore | None:
        for setup in plan.setups:
            self._tables.clear(setup.slot)
            self._states.set_up(setup)
        for row in plan.rows:
            if row.new_pages:
                pages = np.frombuffer(row.new_pages, np.int32)
                self._tables.append(row.slot, pages)
                if self._page_memory is not None:
                    self._page_memory.used(int(pages.max()))
        if plan.saves:
            self._store_transfers().save(plan.saves)
        if plan.copies:
            moves = [(copy.source, copy.destination) for copy in plan.copies]
            copy_pages(self._kvs, *zip(*moves, strict=True))
        return self._store_transfers().restore(plan.restores) if plan.restores else None

    def _store_transfers(self) -> Transfers:
        assert self._transfers is not None, "the process has no page store"
        return self._transfers

    def _prompt_logprobs(
        self, rows: list[Row], batch: InputBatch, hidden: torch.Tensor
    ) -> tuple[list[RowPromptLogprobs], list[RowError]]:
        reports: list[RowPromptLogprobs] = []
        errors: list[RowError] = []
        start = 0
        for row in (rows[index] for index in batch.target_rows):
            targets = np.frombuffer(row.targets, np.int32)
            states = hidden[start : start + len(targets)]
            start += len(targets)
            alternatives = int(self._states.prompt_logprobs[row.slot])
            logprobs = prompt_logprobs(states, self._decoder.logits, self._vocab_size, targets, alternatives)
            if logprobs is None:
                errors.append(RowError(row.slot, "not_a_number", NOT_A_NUMBER))
            else:
                reports.append(RowPromptLogprobs(row.slot, row.start + row.untargeted + 1, logprobs))
        return reports, errors

    def _sample(self, rows: list[Row], hidden: torch.Tensor, masks: MasksSource) -> _Outcome:
        """Samples one token for each of `rows`, with hidden states [rows, hidden]."""
        slots = np.array([row.slot for row in rows], np.int32)
        wanted = self._states.logprobs[slots]
        choice = self._choose(rows, slots, hidden, masks)
        sampled = choice.sampled
        followed = sampled.tokens if sampled.states is None else sampled.states
        tokens, bad, states = to_host([sampled.tokens, sampled.bad, followed])
        errors = [RowError(slot, "mask_late", MASK_LATE) for slot in choice.late]
        errors += [_error(int(slots[row]), choice.logits[row]) for row in np.flatnonzero(bad)]
        return _Outcome(
            slots=slots,
            tokens=tokens,
            states=states if sampled.states is not None else np.full_like(states, NO_AUTOMATON),
            logprobs=[] if sampled.logprobs is None else _logprobs(slots, wanted, sampled),
            errors=errors,
            waited=choice.waited,
        )

    def _choose(
        self, rows: list[Row], slots: NDArray[np.int32], hidden: torch.Tensor, masks: MasksSource
    ) -> _Choice:
        most = int(self._states.logprobs[slots].max())
        if most == NONE and not any(row.host_mask for row in rows):
            replayed = self._replay_sampling(slots, hidden)
            if replayed is not None:
                return _Choice(*replayed)
        logits = self._decoder.logits(hidden)
        host_mask, late, waited = self._await_masks(rows, slots, masks)
        sampled = sample(logits, self._states.gather(slots, host_mask), None if most == NONE else most)
        self._states.sampling.record(slots, sampled.tokens)
        return _Choice(logits, sampled, late, waited)

    def _await_masks(
        self, rows: list[Row], slots: NDArray[np.int32], masks: MasksSource
    ) -> tuple[TokenMask | None, list[int], float]:
        """The masks, the slots whose masks did not come in time, and the seconds spent waiting."""
        masked = [row.slot for row in rows if row.host_mask]
        if not masked:
            return None, [], 0.0
        started = time.perf_counter()
        message = masks()
        waited = time.perf_counter() - started
        return (None, masked, waited) if message is None else (self._token_mask(message, slots), [], waited)

    def _token_mask(self, message: StepMasks, slots: NDArray[np.int32]) -> TokenMask:
        mask_of_slot = {int(slot): at for at, slot in enumerate(np.frombuffer(message.slots, np.int32))}
        index = np.array([mask_of_slot.get(int(slot), -1) for slot in slots], np.int32)
        bits = np.frombuffer(message.masks, np.int32).copy()
        bits = bits.reshape(len(mask_of_slot), -(-self._vocab_size // 32))
        return TokenMask(*upload([index, bits], self._kvs[0].device))


def _nothing_sampled() -> _Outcome:
    return _Outcome(NOTHING, NOTHING, NOTHING, [], [], 0.0)


def _result(
    step: int, outcome: _Outcome, prompts: list[RowPromptLogprobs], forward_tokens: int, started: float
) -> StepResult:
    return StepResult(
        step=step,
        slots=outcome.slots.tobytes(),
        tokens=outcome.tokens.tobytes(),
        states=outcome.states.tobytes(),
        forward_tokens=forward_tokens,
        elapsed_ms=(time.perf_counter() - started - outcome.waited) * 1000,
        logprobs=outcome.logprobs,
        prompt_logprobs=prompts,
        errors=outcome.errors,
    )


def _error(slot: int, logits: torch.Tensor) -> RowError:
    if bool(logits.isnan().any()):
        return RowError(slot, "not_a_number", NOT_A_NUMBER)
    return RowError(slot, "nothing_allowed", NOTHING_ALLOWED)


def _logprobs(slots: NDArray[np.int32], wanted: NDArray[np.int32], sampled: Sampled) -> list[RowLogprobs]:
    assert sampled.logprobs is not None and sampled.top_ids is not None and sampled.top_logprobs is not None
    chosen, ids, values = to_host([sampled.logprobs, sampled.top_ids, sampled.top_logprobs])
    return [
        RowLogprobs(
            int(slots[row]),
            Logprobs(
                chosen[row].tobytes(), ids[row, : wanted[row]].tobytes(), values[row, : wanted[row]].tobytes()
            ),
        )
        for row in np.flatnonzero(wanted != NONE)
    ]
