"""Applies a step's result to its requests: tokens, forced runs, errors, complete replies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice, repeat
from typing import TypeAlias

import numpy as np

from ..messages import (
    DRAFT_SOURCES,
    FinishReason,
    Logprobs,
    ReplyError,
    RowError,
    StepResult,
)
from .completion import Completion
from .counts import Counts
from .fairness import OUTPUT_WEIGHT, Fairness
from .forced_runs import ForcedRuns, ForcedTokenizer
from .plan import StepInFlight
from .refusals import describe_grammar_error
from .replies import Replies, find_ending
from .request import Phase, Request

MAX_WAIT_S = 0.05  # seconds of a loop turn for all grammars' processes; an answer usually takes 0.0001


class WaitBudget:
    """The time that the current turn of the loop may still wait for grammars' processes."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left_s = MAX_WAIT_S

    def renew(self) -> None:
        """Sets the full time at the beginning of a turn of the loop."""
        self._left_s = MAX_WAIT_S

    def is_ready(self, request: Request) -> bool:
        """Whether the request's constraint can be used now. Waits for it while time is left."""
        if request.constraint is None:
            return True
        began = self._clock()
        is_ready = request.constraint.is_ready(self._left_s)
        self._left_s = max(0.0, self._left_s - (self._clock() - began))
        return is_ready


@dataclass(slots=True)
class StepOutcome:
    """The requests whose phase changes with a step's result, in the order of its rows."""

    answered: list[Request] = field(default_factory=list)  # forced tokens may still have to be computed
    ended: list[Request] = field(default_factory=list)  # requests that need no further step

    def is_over(self, request: Request) -> bool:
        """Whether the request takes no more tokens."""
        return request.phase is Phase.ENDED or request in self.answered or request in self.ended


_Sampled: TypeAlias = tuple[int, int, Logprobs | None]
"""a token, the automaton's state after it, and its log-probability"""


@dataclass(slots=True)
class _Late:
    """A request whose grammar's process has not answered yet, and its sampled token, which waits too."""

    request: Request
    sampled: _Sampled | None


class Results:
    """Appends a step's tokens to its requests and to their replies.

    A request whose grammar's process has not answered in time is stalled: the last token that was sampled for
    it waits for the answer, and tokens of steps in flight are discarded.
    """

    def __init__(
        self,
        completion: Completion,
        tokenizer: ForcedTokenizer,
        eos: frozenset[int],
        replies: Replies,
        counts: Counts,
        fairness: Fairness,
        wait_budget: WaitBudget,
    ) -> None:
        self._completion = completion
        self._forced_runs = ForcedRuns(tokenizer, eos)
        self._eos = eos
        self._replies = replies
        self._counts = counts
        self._fairness = fairness
        self._wait_budget = wait_budget
        self._late: dict[str, _Late] = {}  # requests by id

    @property
    def has_late(self) -> bool:
        """Whether some request waits for its grammar's process."""
        return bool(self._late)

    def take(self, flight: StepInFlight, result: StepResult) -> StepOutcome:
        """Applies the result of the step `flight`."""
        outcome = StepOutcome()
        by_slot = {request.allocation.slot: request for request, _ in flight.rows}
        for part in result.prompt_logprobs:
            by_slot[part.slot].prompt_logprobs.append(part.logprobs)
        for vector in result.vectors:
            by_slot[vector.slot].vector = vector.values
        for error in result.errors:
            self._take_error(flight, by_slot[error.slot], error, outcome)
        self._take_tokens(flight, result, outcome)
        self._finish_prefills(flight, outcome)
        self._replies.close_step()
        return outcome

    def take_late(self) -> StepOutcome:
        """Resumes the requests whose grammar's process has answered by now."""
        outcome = StepOutcome()
        for late in list(self._late.values()):
            if late.request.is_answered:
                del self._late[late.request.id]
            elif self._wait_budget.is_ready(late.request):
                del self._late[late.request.id]
                self._resume(late, outcome)
        self._replies.close_step()
        return outcome

    def stall(self, flight: StepInFlight) -> None:
        """Stalls requests whose masks for the step are not known in time."""
        for request in flight.host_masked:
            is_discarded = request.is_answered or flight.step <= request.allocation.discard_until_step
            # A late request's sampled token comes first, even if the answer has come since the turn began.
            is_late = request.id in self._late
            if not is_discarded and (is_late or not self._wait_budget.is_ready(request)):
                request.allocation.stall()
                self._late.setdefault(request.id, _Late(request, None))

    def _resume(self, late: _Late, outcome: StepOutcome) -> None:
        request = late.request
        if late.sampled is not None:
            self._take_token(request, late.sampled, outcome)
        if request.held is None or outcome.is_over(request):
            return
        if late.sampled is not None or request.held.is_stalled:
            request.held.force(request.length - 1, request.length)

    def force(self, request: Request) -> FinishReason | None:
        """Appends the tokens that must come next. Returns why the reply ends there, if it does."""
        return self._force(request, ())[0]

    def _force(self, request: Request, following: Sequence[int]) -> tuple[FinishReason | None, int]:
        """As `force`. Returns in addition how many of the tokens `following`, which were sampled after the
        request's last one, it has appended: if some were superseded, 0."""
        run = self._forced_runs.next(request)
        if not run or not self._completion.can_end_after(request, run):
            return None, 0
        self._counts.forced_tokens += len(run)
        agreeing = _count_equal(run, following)
        self._append(request, run, agreeing)
        return find_ending(request, self._eos), agreeing if agreeing == len(run) else 0

    def _take_tokens(self, flight: StepInFlight, result: StepResult, outcome: StepOutcome) -> None:
        rows = _split_rows(flight, result)
        predicted = self._count_drafts(result, rows) if result.drafted else repeat(0)
        for (request, row), (_, sampled) in zip(flight.rows, rows, strict=True):
            if sampled:
                request.drafts.steps += 1
                self._counts.reply_steps += 1
            if flight.step > request.allocation.discard_until_step:
                request.allocation.settle(row.samples, len(sampled))
        for request, sampled in rows:
            if flight.step > request.allocation.discard_until_step and not outcome.is_over(request):
                for token, *_ in sampled:
                    self._expect(request, token)
        for (request, sampled), count in zip(rows, predicted, strict=False):
            self._take_row(flight.step, request, sampled, outcome, count)

    def _take_row(
        self, step: int, request: Request, sampled: Sequence[_Sampled], outcome: StepOutcome, predicted: int
    ) -> None:
        """Appends the tokens of a row up to the reply's end, or to a token that a forced one supersedes.

        predicted: how many of the first tokens were drafted from the client's prediction. Those that are
        appended are counted.
        """
        at, allocation = 0, request.allocation
        while at < len(sampled) and step > allocation.discard_until_step and not outcome.is_over(request):
            if self._wait_budget.is_ready(request):
                following = [token for token, *_ in sampled[at + 1 :]] if len(sampled) > 1 else ()
                if at < predicted:
                    request.count_predicted(accepted=1)
                at += 1 + self._take_token(request, sampled[at], outcome, following)
            else:
                allocation.stall()
                self._late[request.id] = _Late(request, sampled[at])

    def _expect(self, request: Request, token: int) -> None:
        """Announces a token to its grammar's process, before the first answer of any process is awaited."""
        constraint = request.constraint
        if constraint and constraint.host_masked and self._completion.can_end_after(request, [token]):
            constraint.expect(token)

    def _take_token(
        self, request: Request, sampled: _Sampled, outcome: StepOutcome, following: Sequence[int] = ()
    ) -> int:
        """Appends a token. Returns how many of the row's tokens `following` are appended too, as forced
        ones."""
        token, state, logprobs = sampled
        if not self._completion.can_end_after(request, [token]):
            self._complete(request)
            outcome.answered.append(request)
            return 0
        request.append(token)
        self._count_output(request, 1)
        error = request.constraint.accept(token, state) if request.constraint else None
        if error is not None:
            self._fail(request, describe_grammar_error(request, error), outcome)
            return 0
        finish, taken = find_ending(request, self._eos), 0
        if finish is None:
            finish, taken = self._force(request, following)
        self._replies.add_tokens(request, logprobs, finish)
        if finish is not None:
            outcome.answered.append(request)
        return taken

    def _count_drafts(self, result: StepResult, rows: Sequence[tuple[Request, list[_Sampled]]]) -> list[int]:
        """Counts the drafts of a step. Returns how many tokens of each row were drafted from a prediction."""
        predicted = [0] * len(rows)
        drafted, sources = (
            np.frombuffer(part, np.int32).tolist() for part in (result.drafted, result.draft_sources)
        )
        for row, ((request, sampled), count, number) in enumerate(zip(rows, drafted, sources, strict=True)):
            if not count:
                continue
            source, accepted = DRAFT_SOURCES[number], max(0, len(sampled) - 1)
            self._counts.count_drafts(source, count, accepted)
            request.count_drafts(count, accepted)
            if source == "prediction":
                predicted[row] = accepted
                request.count_predicted(rejected=count - accepted)
        return predicted

    def _count_output(self, request: Request, tokens: int) -> None:
        self._counts.output_tokens += tokens
        self._fairness.charge(request, OUTPUT_WEIGHT * tokens)

    def _complete(self, request: Request) -> None:
        """Ends the reply with the shortest closing text, in place of a sampled token that would leave too few
        tokens for that text."""
        end = self._completion.end(request) or ()
        self._append(request, end[: request.max_length - request.length])
        self._replies.add_tokens(request, None, "length")

    def _append(self, request: Request, tokens: Sequence[int], sampled: int = 0) -> None:
        """Appends forced tokens in place of tokens that are being sampled. sampled: how many of the first
        ones the last step has sampled too, so that they need not be computed"""
        assert request.constraint is not None
        start = request.length
        request.constraint.append(tokens)
        for token in tokens:
            request.append(token)
        self._count_output(request, len(tokens))
        if sampled < len(tokens) and request.held is not None:
            request.held.force(start + sampled, request.length)

    def _take_error(
        self, flight: StepInFlight, request: Request, error: RowError, outcome: StepOutcome
    ) -> None:
        allocation = request.allocation
        allocation.faulty |= error.kind == "not_a_number"
        if flight.step <= allocation.discard_until_step and error.kind != "not_a_number":
            return  # there is no error in the tokens that replace the discarded one
        is_complete = request.constraint is not None and request.output_length < request.sampling.min_tokens
        if error.kind == "nothing_allowed" and is_complete and not self._is_answered(request, outcome):
            # the grammar allows only the end of the reply, which `min_tokens` forbids
            self._replies.end(request, "stop")
            outcome.ended.append(request)
        else:
            self._fail(request, ReplyError(error.message), outcome)

    def _finish_prefills(self, flight: StepInFlight, outcome: StepOutcome) -> None:
        """Ends requests with `max_tokens` 0 after the prompt, and answered ones after their forced tokens."""
        for request, _ in flight.rows:
            allocation = request.allocation
            if allocation.prefilling or allocation.last_step != flight.step or outcome.is_over(request):
                continue
            if request.phase is Phase.ANSWERED:
                outcome.ended.append(request)
            elif request.phase is Phase.RUNNING and request.sampling.max_tokens == 0:
                self._replies.end(request, "length")
                outcome.ended.append(request)

    def _fail(self, request: Request, error: ReplyError, outcome: StepOutcome) -> None:
        if not self._is_answered(request, outcome):
            self._replies.end(request, "error", error)
        if not outcome.is_over(request):
            outcome.ended.append(request)

    def _is_answered(self, request: Request, outcome: StepOutcome) -> bool:
        return request.is_answered or outcome.is_over(request)


def _split_rows(flight: StepInFlight, result: StepResult) -> list[tuple[Request, list[_Sampled]]]:
    """The tokens that each row has sampled."""
    counts, tokens, states = (
        np.frombuffer(part, np.int32).tolist() for part in (result.counts, result.tokens, result.states)
    )
    rows = list(zip(flight.rows, counts, strict=True))
    logprobs: Iterable[Logprobs | None] = repeat(None)
    if result.logprobs:
        by_place = {(part.slot, part.offset): part.logprobs for part in result.logprobs}
        logprobs = [by_place.get((row.slot, at)) for (_, row), count in rows for at in range(count)]
    left = zip(tokens, states, logprobs, strict=False)
    return [(request, list(islice(left, count))) for (request, _), count in rows]


def _count_equal(some: Sequence[int], others: Sequence[int]) -> int:
    """How many tokens at the start of both are the same."""
    pairs = enumerate(zip(some, others, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(some), len(others)))
