"""A step that the device computes: the host's work between its launches and its result."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ...kernels.common.drafts import Drafts
from ...kernels.sampling import Sampled
from ...kernels.sampling.batch import NOT_A_NUMBER as BAD_NOT_A_NUMBER
from ...kernels.sampling.packed_results import PackedResults
from ..messages import (
    Logprobs,
    Row,
    RowError,
    RowLogprobs,
    RowPromptLogprobs,
    StepMasks,
    StepPlan,
    StepResult,
)
from .devices import HostCopies
from .drafts import StepCosts
from .input_batch import StepInputs
from .pooler import RowVectors
from .prompt_logprobs import report
from .slot_states import NONE
from .tiers import StepMoves

NOT_A_NUMBER = "The model's logits for this request are not numbers (NaN)."
NO_VECTOR = "The model's vector of this input has numbers that are NaN or infinite."
NOTHING_ALLOWED = "No token is allowed here: masks, banned tokens and biases exclude them all."
MASK_LATE = "The grammar mask of this request did not come in time."
NO_SLOTS = np.zeros(0, np.int32)
NO_ROWS = torch.zeros(0, dtype=torch.int32)
NOTHING_SAMPLED = Sampled(NO_ROWS, NO_ROWS, None, None, None, NO_ROWS)

MasksSource = Callable[[], StepMasks | None]
"""waits for the masks of the running step; returns None if they did not come in time"""


@dataclass(frozen=True)
class ScoredPrompt:
    """Log-probabilities of a row's prompt tokens."""

    row: Row
    copies: HostCopies


class KeptTokens(NamedTuple):
    """The sampled tokens of a step that belong to the outputs of slots."""

    slots: NDArray[np.int32]
    tokens: NDArray[np.int32]
    counts: NDArray[np.int32]
    """[rows of the plan]: tokens of each; none if the drafter had no drafts"""
    sampled_slots: NDArray[np.int32]
    """all slots for which the step has sampled, each once"""
    more: NDArray[np.int32]
    """[sampled slots]: how many of the slot's drafts are kept; -1: no token could be sampled because of them
    """


@dataclass(slots=True)
class RunningStep:
    """A step that was launched. On a CPU it is computed, except the sampling of rows that wait for masks."""

    plan: StepPlan
    moves: StepMoves | None
    """the copies of pages between the device and host memory; None without a page store"""
    started: float
    """when the step was launched, in seconds of `time.perf_counter`"""
    drafts: Drafts | None = None
    """of the plan's rows; None: no row has any"""
    proposed: Drafts | None = None
    """the drafts of which a controller has chosen `drafts`"""
    inputs: StepInputs | None = None
    """None: the plan has no rows"""
    hidden: torch.Tensor | None = None
    """hidden states of the output tokens, for `StepExecutor.sample`"""
    prompts: Sequence[ScoredPrompt] = ()
    vectors: RowVectors | None = None
    """None: the model generates"""
    results: PackedResults | None = None
    """results of sampling, on the device"""
    late: Sequence[int] = ()
    """slots whose masks did not come in time"""
    copies: HostCopies | None = None
    """the last copies to the host that were launched; complete when the device is done with the step"""
    waited: float = 0.0
    """seconds that the host waited for masks"""
    _sampled: Sampled | None = None
    """the sampled rows on the host, once they were waited for"""

    def wait_for(self, masks: MasksSource) -> StepMasks | None:
        started = time.perf_counter()
        message = masks()
        self.waited = time.perf_counter() - started
        return message

    def ready(self) -> bool:
        """Whether `finish` returns without waiting for the device."""
        return self.copies is None or self.copies.ready()

    def finish(self, idle_since: float) -> StepResult:
        """Waits for the device. Returns the result, without the time of restores.

        idle_since: when the device finished the previous step, in seconds of `time.perf_counter`
        """
        sampled = self._read_results()
        assert sampled.states is not None
        slots, offsets, kept = self._find_kept(sampled)
        prompts, prompt_errors = _prompt_reports(self.prompts)
        vectors, vector_errors = ([], []) if self.vectors is None else self.vectors.report(NO_VECTOR)
        bad = sampled.bad.numpy()
        errors = [RowError(slot, "mask_late", MASK_LATE) for slot in self.late]
        errors += [_error(int(slots[row]), int(bad[row])) for row in np.flatnonzero(bad * kept)]
        ended = time.perf_counter()
        return StepResult(
            step=self.plan.step,
            counts=self._count_tokens(kept).tobytes(),
            tokens=sampled.tokens.numpy()[kept].tobytes(),
            states=sampled.states.numpy()[kept].tobytes(),
            drafted=b"" if self.drafts is None else self.drafts.counts.tobytes(),
            draft_sources=b"" if self.drafts is None else self.drafts.sources.tobytes(),
            elapsed_ms=(ended - max(self.started, idle_since) - self.waited) * 1000,
            logprobs=[] if self.inputs is None else _logprobs(self.inputs, sampled, offsets, kept),
            prompt_logprobs=prompts,
            errors=errors + prompt_errors + vector_errors,
            vectors=vectors,
        )

    def _read_results(self) -> Sampled:
        """Waits for the step; returns the sampled rows on the host."""
        if self._sampled is None:
            copies = [] if self.copies is None else self.copies.wait()
            self._sampled = NOTHING_SAMPLED
            if self.results is not None and self.inputs is not None:
                self._sampled = self.results.on(copies[0]).rows(len(self.inputs.sampled_slots))
        return self._sampled

    def report_cost(self, costs: StepCosts, milliseconds: float) -> None:
        """Adds the time of the step to what is known of the time of steps, if it only decodes."""
        if self.inputs is None or self.plan.restores or any(row.tokens for row in self.plan.rows):
            costs.pass_over()
        else:
            drafts = 0 if self.drafts is None else len(self.drafts.tokens)
            costs.observe(self.inputs.size, drafts, milliseconds)

    def read_kept(self) -> KeptTokens:
        """Waits for the step; returns the tokens that are kept."""
        sampled = self._read_results()
        slots, offsets, kept = self._find_kept(sampled)
        tokens = sampled.tokens.numpy()
        counts = NO_SLOTS if self.proposed is None else self._count_tokens(kept)
        if self.drafts is None:
            return KeptTokens(slots, tokens, counts, slots, np.zeros_like(slots))
        firsts = np.flatnonzero(offsets == 0)
        more = np.add.reduceat(kept, firsts, dtype=np.int32) - 1
        return KeptTokens(slots[kept], tokens[kept], counts, slots[firsts], more)

    def _find_kept(self, sampled: Sampled) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_]]:
        """The slot and the offset of each sampled row, and whether its token is kept."""
        if self.inputs is None or self.results is None:
            return NO_SLOTS, NO_SLOTS, np.zeros(0, np.bool_)
        slots = self.inputs.sampled_slots
        if self.inputs.drafts is None:
            return slots, np.zeros_like(slots), np.ones(len(slots), np.bool_)
        drafts = self.inputs.drafts
        return slots, drafts.offsets, drafts.find_kept(sampled.tokens.numpy(), sampled.bad.numpy())

    def _count_tokens(self, kept: NDArray[np.bool_]) -> NDArray[np.int32]:
        """How many tokens each row of the plan has sampled."""
        counts = np.array([min(row.samples, 1) for row in self.plan.rows], np.int32)
        if self.inputs is not None and self.inputs.drafts is not None:
            firsts = np.flatnonzero(self.inputs.drafts.offsets == 0)
            counts[counts > 0] = np.add.reduceat(kept, firsts, dtype=np.int32)
        return counts


def _error(slot: int, reason: int) -> RowError:
    if reason == BAD_NOT_A_NUMBER:
        return RowError(slot, "not_a_number", NOT_A_NUMBER)
    return RowError(slot, "nothing_allowed", NOTHING_ALLOWED)


def _logprobs(
    inputs: StepInputs, sampled: Sampled, offsets: NDArray[np.int32], kept: NDArray[np.bool_]
) -> list[RowLogprobs]:
    if sampled.logprobs is None or sampled.top_ids is None or sampled.top_logprobs is None:
        return []
    slots, wanted = inputs.sampled_slots, inputs.logprobs
    chosen, ids, values = (t.numpy() for t in (sampled.logprobs, sampled.top_ids, sampled.top_logprobs))
    return [
        RowLogprobs(
            int(slots[row]),
            Logprobs(
                chosen[row].tobytes(), ids[row, : wanted[row]].tobytes(), values[row, : wanted[row]].tobytes()
            ),
            int(offsets[row]),
        )
        for row in np.flatnonzero((wanted != NONE) & kept)
    ]


def _prompt_reports(prompts: Sequence[ScoredPrompt]) -> tuple[list[RowPromptLogprobs], list[RowError]]:
    reports: list[RowPromptLogprobs] = []
    errors: list[RowError] = []
    for prompt in prompts:
        row, logprobs = prompt.row, report(prompt.copies)
        if logprobs is None:
            errors.append(RowError(row.slot, "not_a_number", NOT_A_NUMBER))
        else:
            reports.append(RowPromptLogprobs(row.slot, logprobs))
    return reports, errors
