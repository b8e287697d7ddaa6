"""A step that the device computes: the host's work between its launches and its result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

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
from .prompt_logprobs import report
from .slot_states import NONE

NOT_A_NUMBER = "The model's logits for this request are not numbers (NaN)."
NOTHING_ALLOWED = "No token is allowed here: masks, banned tokens and biases exclude them all."
MASK_LATE = "The grammar mask of this request did not come in time."
NOTHING = np.zeros(0, np.int32)

MasksSource = Callable[[], StepMasks | None]
"""waits for the masks of the running step; None: they did not come in time"""


@dataclass(frozen=True)
class SampledRows:
    """Tokens that the device samples and records for slots, and the copies of them on the host."""

    slots: NDArray[np.int32]
    wanted: NDArray[np.int32]
    """alternatives to report for each row; `NONE`: no log-probabilities"""
    results: PackedResults
    copies: HostCopies
    late: Sequence[int] = ()
    """slots whose masks did not come in time"""

    def read(self) -> Sampled:
        (buffer,) = self.copies.wait()
        return self.results.on(buffer).rows(len(self.slots))


@dataclass(frozen=True)
class ScoredPrompt:
    """Log-probabilities of a row's prompt tokens."""

    row: Row
    copies: HostCopies


class RunningStep:
    """In order: `sample` → `finish`, which waits for the device. On a CPU each of them computes its part."""

    def __init__(
        self,
        plan: StepPlan,
        forward_tokens: int,
        prompts: Sequence[ScoredPrompt],
        sample: Callable[[StepMasks | None], SampledRows] | None,
        masked: Sequence[int],
        computed: HostCopies | None,
        settle: Callable[[], float],
        started: float,
    ) -> None:
        """sample: launches sampling; None: no row samples
        computed: complete after the forward pass; None: something else is read of the step
        masked: slots of rows whose masks come from the host
        settle: called after the step; returns the milliseconds that restoring pages took
        """
        self._plan, self._forward_tokens, self._prompts = plan, forward_tokens, prompts
        self._sample, self._masked, self._computed, self._settle = sample, masked, computed, settle
        self._sampled: SampledRows | None = None
        self._started, self._waited = started, 0.0

    def launch_sampling(self, masks: StepMasks | None) -> None:
        if self._sample is not None:
            self._sampled = self._sample(masks)

    def sample(self, masks: MasksSource) -> None:
        """Waits for the masks of the rows with masks from the host, if there are any, and samples."""
        if not self._masked:
            return
        started = time.perf_counter()
        message = masks()
        self._waited = time.perf_counter() - started
        self.launch_sampling(message)

    def ready(self) -> bool:
        """Whether `finish` returns without waiting for the device."""
        return all(copies.ready() for copies in self._copies())

    def finish(self, idle_since: float) -> StepResult:
        """idle_since: when the device was done with the step before, in seconds of `time.perf_counter`"""
        if self._computed is not None:
            self._computed.wait()
        sampled = NOTHING_SAMPLED if self._sampled is None else _outcome(self._sampled)
        prompts, errors = _prompt_reports(self._prompts)
        ended = time.perf_counter()
        return StepResult(
            step=self._plan.step,
            slots=sampled.slots.tobytes(),
            tokens=sampled.tokens.tobytes(),
            states=sampled.states.tobytes(),
            forward_tokens=self._forward_tokens,
            elapsed_ms=(ended - max(self._started, idle_since) - self._waited) * 1000,
            logprobs=sampled.logprobs,
            prompt_logprobs=prompts,
            errors=sampled.errors + errors,
            restored_ms=self._settle(),
        )

    def _copies(self) -> Iterator[HostCopies]:
        yield from (prompt.copies for prompt in self._prompts)
        if self._sampled is not None:
            yield self._sampled.copies
        if self._computed is not None:
            yield self._computed


@dataclass(frozen=True)
class _Outcome:
    """Tokens and automaton states of the rows of `slots`, int32 [rows], on the host."""

    slots: NDArray[np.int32]
    tokens: NDArray[np.int32]
    states: NDArray[np.int32]
    logprobs: list[RowLogprobs] = field(default_factory=list)
    errors: list[RowError] = field(default_factory=list)


NOTHING_SAMPLED = _Outcome(NOTHING, NOTHING, NOTHING)


def _outcome(rows: SampledRows) -> _Outcome:
    sampled, slots = rows.read(), rows.slots
    assert sampled.states is not None
    errors = [RowError(slot, "mask_late", MASK_LATE) for slot in rows.late]
    bad = sampled.bad.numpy()
    errors += [_error(int(slots[row]), int(bad[row])) for row in np.flatnonzero(bad)]
    return _Outcome(
        slots, sampled.tokens.numpy(), sampled.states.numpy(), _logprobs(slots, rows.wanted, sampled), errors
    )


def _error(slot: int, reason: int) -> RowError:
    if reason == BAD_NOT_A_NUMBER:
        return RowError(slot, "not_a_number", NOT_A_NUMBER)
    return RowError(slot, "nothing_allowed", NOTHING_ALLOWED)


def _logprobs(slots: NDArray[np.int32], wanted: NDArray[np.int32], sampled: Sampled) -> list[RowLogprobs]:
    if sampled.logprobs is None or sampled.top_ids is None or sampled.top_logprobs is None:
        return []
    chosen, ids, values = (t.numpy() for t in (sampled.logprobs, sampled.top_ids, sampled.top_logprobs))
    return [
        RowLogprobs(
            int(slots[row]),
            Logprobs(
                chosen[row].tobytes(), ids[row, : wanted[row]].tobytes(), values[row, : wanted[row]].tobytes()
            ),
        )
        for row in np.flatnonzero(wanted != NONE)
    ]


def _prompt_reports(prompts: Sequence[ScoredPrompt]) -> tuple[list[RowPromptLogprobs], list[RowError]]:
    reports: list[RowPromptLogprobs] = []
    errors: list[RowError] = []
    for prompt in prompts:
        row, logprobs = prompt.row, report(prompt.copies)
        if logprobs is None:
            errors.append(RowError(row.slot, "not_a_number", NOT_A_NUMBER))
        else:
            reports.append(RowPromptLogprobs(row.slot, row.start + row.untargeted + 1, logprobs))
    return reports, errors
