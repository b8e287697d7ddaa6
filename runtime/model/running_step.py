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

MasksSource = Callable[[], StepMasks | None]
"""waits for the masks of the running step; returns None if they did not come in time"""


@dataclass(frozen=True)
class ScoredPrompt:
    """Log-probabilities of a row's prompt tokens."""

    row: Row
    copies: HostCopies


class SampledRows(NamedTuple):
    """The rows of a step that sampled, on the host."""

    slots: NDArray[np.int32]
    offsets: NDArray[np.int32]
    """[rows]: see `DraftRows.offsets`"""
    tokens: NDArray[np.int32]
    bad: NDArray[np.int32]
    """[rows]: see `Sampled.bad`"""
    states: NDArray[np.int32]
    kept: NDArray[np.bool_]
    """[rows]: whether each row's token is kept"""
    counts: NDArray[np.int32]
    """[slots]: how many tokens of each slot are kept"""


NOTHING_SAMPLED = SampledRows(
    NO_SLOTS, NO_SLOTS, NO_SLOTS, NO_SLOTS, NO_SLOTS, np.zeros(0, np.bool_), NO_SLOTS
)


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
    _on_host: PackedResults | None = None
    """a copy of `results`, once it was waited for"""
    _rows: SampledRows | None = None
    """the sampled rows, once they were waited for"""

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
        rows = self._read_rows()
        kept = rows.kept
        prompts, prompt_errors = _prompt_reports(self.prompts)
        vectors, vector_errors = ([], []) if self.vectors is None else self.vectors.report(NO_VECTOR)
        errors = [RowError(slot, "mask_late", MASK_LATE) for slot in self.late]
        if rows.bad.any():
            failed = np.flatnonzero(rows.bad * kept)
            errors += [_error(int(rows.slots[row]), int(rows.bad[row])) for row in failed]
        ended = time.perf_counter()
        return StepResult(
            step=self.plan.step,
            counts=self._count_tokens(rows).tobytes(),
            tokens=rows.tokens[kept].tobytes(),
            states=rows.states[kept].tobytes(),
            drafted=b"" if self.drafts is None else self.drafts.counts.tobytes(),
            draft_sources=b"" if self.drafts is None else self.drafts.sources.tobytes(),
            elapsed_ms=(ended - max(self.started, idle_since) - self.waited) * 1000,
            logprobs=self._report_logprobs(rows),
            prompt_logprobs=prompts,
            errors=errors + prompt_errors + vector_errors,
            vectors=vectors,
        )

    def _read_rows(self) -> SampledRows:
        """Waits for the step; returns the rows that sampled."""
        if self._rows is None:
            self._rows = self._find_rows([] if self.copies is None else self.copies.wait())
        return self._rows

    def _find_rows(self, copies: Sequence[torch.Tensor]) -> SampledRows:
        if self.inputs is None or self.results is None:
            return NOTHING_SAMPLED
        slots, drafts = self.inputs.sampled_slots, self.inputs.drafts
        self._on_host = self.results.on(copies[0])
        tokens, bad, states = self._on_host.integers(len(slots))
        if drafts is None:
            kept, ones = np.ones(len(slots), np.bool_), np.ones(len(slots), np.int32)
            return SampledRows(slots, np.zeros_like(slots), tokens, bad, states, kept, ones)
        kept, counts = drafts.find_kept(tokens, bad)
        return SampledRows(slots, drafts.offsets, tokens, bad, states, kept, counts)

    def _report_logprobs(self, rows: SampledRows) -> list[RowLogprobs]:
        if self.inputs is None or self._on_host is None or self._on_host.alternatives is None:
            return []
        return _logprobs(self.inputs, self._on_host.rows(len(rows.slots)), rows)

    def report_cost(self, costs: StepCosts, milliseconds: float) -> None:
        """Adds the time of the step to what is known of the time of steps, if it only decodes."""
        if self.inputs is None or self.plan.restores or any(row.tokens for row in self.plan.rows):
            costs.pass_over()
        else:
            drafts = 0 if self.drafts is None else len(self.drafts.tokens)
            costs.observe(self.inputs.size, drafts, milliseconds)

    def read_kept(self) -> KeptTokens:
        """Waits for the step; returns the tokens that are kept."""
        rows = self._read_rows()
        counts = NO_SLOTS if self.proposed is None else self._count_tokens(rows)
        if self.drafts is None:
            return KeptTokens(rows.slots, rows.tokens, counts, rows.slots, np.zeros_like(rows.slots))
        kept = rows.kept
        distinct = rows.slots[rows.offsets == 0]
        return KeptTokens(rows.slots[kept], rows.tokens[kept], counts, distinct, rows.counts - 1)

    def _count_tokens(self, rows: SampledRows) -> NDArray[np.int32]:
        """How many tokens each row of the plan has sampled."""
        counts = np.array([min(row.samples, 1) for row in self.plan.rows], np.int32)
        if self.inputs is not None and self.inputs.drafts is not None:
            counts[counts > 0] = rows.counts
        return counts


def _error(slot: int, reason: int) -> RowError:
    if reason == BAD_NOT_A_NUMBER:
        return RowError(slot, "not_a_number", NOT_A_NUMBER)
    return RowError(slot, "nothing_allowed", NOTHING_ALLOWED)


def _logprobs(inputs: StepInputs, sampled: Sampled, rows: SampledRows) -> list[RowLogprobs]:
    if sampled.logprobs is None or sampled.top_ids is None or sampled.top_logprobs is None:
        return []
    slots, wanted = rows.slots, inputs.logprobs
    chosen, ids, values = (t.numpy() for t in (sampled.logprobs, sampled.top_ids, sampled.top_logprobs))
    return [
        RowLogprobs(
            int(slots[row]),
            Logprobs(
                chosen[row].tobytes(), ids[row, : wanted[row]].tobytes(), values[row, : wanted[row]].tobytes()
            ),
            int(rows.offsets[row]),
        )
        for row in np.flatnonzero((wanted != NONE) & rows.kept)
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
