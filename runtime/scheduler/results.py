"""What a step's result means for its requests: tokens, forced runs, errors, ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..messages import FinishReason, Logprobs, ReplyError, RowError, StepResult
from .admission import left_grammar
from .completion import Completion
from .counts import Counts
from .fairness import OUTPUT_WEIGHT, Fairness
from .forced_runs import ForcedRuns, Segments
from .plan import StepInFlight
from .replies import Replies, ending
from .request import Phase, Request


class Results:
    """Appends to requests and their replies. Who needs no more steps is given to `end`; who is answered but
    has forced tokens left to compute is taken out of `open_requests`.
    """

    def __init__(
        self,
        segments: Segments,
        eos: frozenset[int],
        replies: Replies,
        counts: Counts,
        fairness: Fairness,
        open_requests: dict[str, Request],
        end: Callable[[Request], None],
    ) -> None:
        self.completion = Completion(segments, eos)
        self._forced_runs = ForcedRuns(segments, eos)
        self._eos = eos
        self._replies = replies
        self._counts = counts
        self._fairness = fairness
        self._open = open_requests
        self._end = end

    def take(self, flight: StepInFlight, result: StepResult) -> None:
        """`result` is of the step `flight`."""
        by_slot = {request.residence.slot: request for request in flight.rows}
        for part in result.prompt_logprobs:
            by_slot[part.slot].prompt_logprobs.append(part.logprobs)
        for error in result.errors:
            self._take_error(by_slot[error.slot], error)
        self._take_tokens(flight, result)
        self._finish_prompts(flight)
        self._replies.close_step()

    def force(self, request: Request) -> FinishReason | None:
        """Appends what must come next. Returns why the reply ends there, if it does."""
        run = self._forced_runs.next(request)
        if not run or not self.completion.leaves_room(request, run):
            return None
        self._counts.forced_tokens += len(run)
        self._append(request, run)
        return ending(request, self._eos)

    def _take_tokens(self, flight: StepInFlight, result: StepResult) -> None:
        tokens = np.frombuffer(result.tokens, np.int32).tolist()
        states = np.frombuffer(result.states, np.int32).tolist()
        logprobs = {part.slot: part.logprobs for part in result.logprobs}
        for request, token in zip(flight.sampled, tokens, strict=True):
            if flight.step > request.residence.superseded and request.phase is not Phase.ENDED:
                self._expect(request, token)
        for request, token, state in zip(flight.sampled, tokens, states, strict=True):
            home = request.residence
            if flight.step <= home.superseded:
                continue
            home.sampling -= 1
            if request.phase is not Phase.ENDED:
                self._take_token(request, token, state, logprobs.get(home.slot))

    def _expect(self, request: Request, token: int) -> None:
        """Before any row's answer is awaited: so the processes that follow grammars work side by side."""
        constraint = request.constraint
        if constraint and constraint.host_masked and self.completion.leaves_room(request, [token]):
            constraint.expect(token)

    def _take_token(self, request: Request, token: int, state: int, logprobs: Logprobs | None) -> None:
        if not self.completion.leaves_room(request, [token]):
            self._complete(request)
            return
        request.append(token)
        self._count_output(request, 1)
        error = request.constraint.accept(token, state) if request.constraint else None
        if error is not None:
            self._fail(request, left_grammar(request, error))
            return
        finish = ending(request, self._eos) or self.force(request)
        self._replies.tokens(request, logprobs, finish)
        if finish is not None:
            self._leave(request)

    def _count_output(self, request: Request, tokens: int) -> None:
        self._counts.output_tokens += tokens
        self._fairness.charge(request, OUTPUT_WEIGHT * tokens)

    def _complete(self, request: Request) -> None:
        """Ends the reply in place of a token that isn't kept. What was planned behind that is void."""
        request.residence.planned = min(request.residence.planned, request.length)
        end = self.completion.end(request) or ()
        self._append(request, end[: request.max_length - request.length])
        self._replies.tokens(request, None, "length")
        self._leave(request)

    def _append(self, request: Request, tokens: Sequence[int]) -> None:
        """Tokens that were not sampled, in place of what is being sampled."""
        assert request.constraint is not None
        request.constraint.append(tokens)
        for token in tokens:
            request.append(token)
        self._count_output(request, len(tokens))
        if tokens and request.home is not None:
            request.home.jump(request.length)

    def _leave(self, request: Request) -> None:
        """The reply is whole. The next turn shall find forced tokens at its end like those before them."""
        home = request.residence
        if request.phase is not Phase.RUNNING or home.planned >= request.length - 1:
            self._end(request)
            return
        del self._open[request.id]
        request.phase = Phase.LEAVING
        home.prefill_end = request.length - 1

    def _take_error(self, request: Request, error: RowError) -> None:
        request.residence.faulty |= error.kind == "not_a_number"
        complete = request.constraint is not None and request.output_length < request.sampling.min_tokens
        if error.kind == "nothing_allowed" and complete and not request.is_answered:
            self._replies.end(request, "stop")  # the grammar allows the end alone, `min_tokens` not even that
            self._end(request)
        else:
            self._fail(request, ReplyError(error.message))

    def _finish_prompts(self, flight: StepInFlight) -> None:
        """Requests for no output at all end with their prompt, those that leave with what was forced."""
        for request in flight.rows:
            home = request.residence
            if home.prefilling or home.last_step != flight.step:
                continue
            if request.phase is Phase.LEAVING:
                self._end(request)
            elif request.phase is Phase.RUNNING and request.sampling.max_tokens == 0:
                self._replies.end(request, "length")
                self._end(request)

    def _fail(self, request: Request, error: ReplyError) -> None:
        if not request.is_answered:
            self._replies.end(request, "error", error)
        if request.phase is not Phase.ENDED:
            self._end(request)
