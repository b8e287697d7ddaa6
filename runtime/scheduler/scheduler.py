"""The scheduler's state machine: requests in, step plans out, results in, outputs out.

It has no sockets and no clock. `plan` may be called one step ahead of the results: rows of the next
step then feed tokens that are still being sampled.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from ...grammars import GrammarError
from ...radix_cache import PrefixCache
from ..messages import Accepted, Generate, LeftOut, Message, Refused, RowError, Stats, StepMasks, StepResult
from .admission import Limits, prefix_in_flight, refusal, take_residence
from .budget import StepBudget
from .grammar_desk import GrammarDesk
from .plan import StepInFlight, StepPlanner
from .queue import WaitingQueue
from .replies import Replies, banned_tokens, ending
from .request import TOKEN_BYTES, Phase, Request

STEPS_IN_FLIGHT = 2


class Scheduler:
    """Owns the requests and their queues; calls the prefix cache and the grammar desk."""

    def __init__(
        self,
        limits: Limits,
        cache: PrefixCache,
        budget: StepBudget,
        grammars: GrammarDesk,
        vocab_size: int,
        eos_tokens: tuple[int, ...],
    ) -> None:
        self._limits = limits
        self._cache = cache
        self._budget = budget
        self._grammars = grammars
        self._mask_words = -(-vocab_size // 32)
        self._eos = frozenset(eos_tokens)
        self._planner = StepPlanner(cache, limits.num_pages, lambda r: banned_tokens(r, self._eos))
        self._open: dict[str, Request] = {}  # every request that isn't answered to its end
        self._waiting = WaitingQueue()
        self._running: dict[int, Request] = {}  # by slot; ended ones too until their last step is over
        self._free_slots = deque(range(limits.slots))
        self._in_flight: deque[StepInFlight] = deque()
        self._replies = Replies()
        self._to_model: list[Message] = []
        self._arrivals = 0
        self._cached_tokens = 0
        self._computed_tokens = 0
        self._output_tokens = 0
        self._retractions = 0
        self._steps = 0

    # What comes from the tokenizer processes

    def submit(self, message: Generate) -> None:
        """Answered by `Accepted` or `Refused`; if it has a grammar, once that is compiled."""
        refused = refusal(message, self._limits, len(self._waiting) + self._grammars.pending)
        if refused is not None:
            self._replies.add(message.client, refused)
            return
        self._arrivals += 1
        request = Request.from_message(message, self._arrivals)
        self._open[request.id] = request
        if message.grammar is None:
            self._accept(request)
        else:
            self._grammars.submit(request.id, message.grammar)

    def take_grammars(self) -> None:
        """Takes in the grammars that were compiled meanwhile."""
        for request_id, compiled in self._grammars.finished():
            request = self._open.get(request_id)
            if isinstance(compiled, GrammarError):
                if request is not None:
                    del self._open[request_id]
                    refused = Refused(
                        request_id, 400, str(compiled), request.grammar_param, "invalid_grammar"
                    )
                    self._replies.add(request.client, refused)
            elif request is None:
                self._grammars.release(compiled)
            else:
                request.constraint = compiled
                self._accept(request)

    def drop(self, request_id: str) -> None:
        """A stop string completed its reply, or nobody waits for it: plan nothing more, say nothing."""
        request = self._open.get(request_id)
        if request is not None:
            self._end(request)

    def drop_client(self, client: int) -> None:
        """A tokenizer process died, and its requests with it."""
        for request in [request for request in self._open.values() if request.client == client]:
            self._end(request)
        self._replies.drop_client(client)

    def refuse_client(self, client: int, message: str) -> None:
        """A tokenizer process reads no more. Should it wake up, it learns that its requests are over."""
        requests = [request.id for request in self._open.values() if request.client == client]
        self.drop_client(client)
        for request in requests:
            self._replies.add(client, Refused(request, 503, message, code="client_too_slow"))

    def query(self, client: int, query: int) -> None:
        self._replies.add(client, self.stats(query))

    # Steps

    def plan(self) -> bool:
        """Plans the next step, unless there is nothing to do or enough steps are in flight."""
        if len(self._in_flight) >= STEPS_IN_FLIGHT:
            return False
        self._admit()
        ready = [request for request in self._active() if self._planner.ready_to_decode(request)]
        secured = [request for request in ready if self._secure_page(request)]
        decoding = [request for request in secured if request.phase is Phase.RUNNING]
        prefilling = [request for request in self._active() if request.residence.prefilling]
        planned = self._planner.build(decoding, prefilling, self._budget.prefill_tokens(len(decoding)))
        if planned is None:
            return False
        plan, flight = planned
        self._computed_tokens += flight.prefill_tokens
        self._in_flight.append(flight)
        self._to_model += self._grammars.take_loads()
        self._to_model.append(plan)
        self._send_masks()
        return True

    def apply(self, result: StepResult) -> None:
        """Takes in the oldest step in flight."""
        flight = self._in_flight[0]
        assert flight.step == result.step, f"result of step {result.step}, expected {flight.step}"
        self._steps += 1
        self._budget.observe(flight.prefill_tokens, result.elapsed_ms)
        for request in flight.rows:
            self._copy_is_made(request, flight.step)
        by_slot = {request.residence.slot: request for request in flight.rows}
        for part in result.prompt_logprobs:
            by_slot[part.slot].prompt_logprobs.append(part.logprobs)
        for error in result.errors:
            self._take_error(by_slot[error.slot], error)
        self._take_tokens(flight, result)
        self._finish_prompts(flight)
        self._replies.close_step()
        self._in_flight.popleft()
        self._send_masks()
        for request in flight.rows:
            if request.home is not None:
                self._settle(request)

    @property
    def compiling(self) -> bool:
        """Some grammar is on its way: `take_grammars` will find it."""
        return self._grammars.pending > 0

    @property
    def idle(self) -> bool:
        return not self._open and not self._running

    def messages_to_model(self) -> list[Message]:
        messages, self._to_model = self._to_model, []
        return messages

    def messages_to_clients(self) -> dict[int, list[Message]]:
        return self._replies.take()

    def stats(self, query: int = 0) -> Stats:
        pages = self._cache.stats()
        return Stats(
            query=query,
            running=len(self._active()),
            waiting=len(self._waiting),
            pages_total=pages.total,
            pages_used=pages.held + pages.locked,
            pages_cached=pages.evictable,
            prompt_tokens_cached=self._cached_tokens,
            prompt_tokens_computed=self._computed_tokens,
            output_tokens=self._output_tokens,
            retractions=self._retractions,
            evicted_pages=pages.evicted_pages,
            steps=self._steps,
        )

    # Admission

    def _accept(self, request: Request) -> None:
        request.phase = Phase.WAITING
        self._waiting.add(request)
        left_out = request.constraint.left_out if request.constraint is not None else ()
        named = [LeftOut(keyword, path) for keyword, path in left_out]
        self._replies.add(request.client, Accepted(request.id, named))

    def _active(self) -> list[Request]:
        return [request for request in self._running.values() if request.phase is Phase.RUNNING]

    def _matched(self, request: Request) -> int:
        return self._cache.matched(request.namespace, bytes(request.tokens))

    def _admit(self) -> None:
        if not self._waiting or not self._free_slots:
            return
        for request in self._waiting.candidates(self._matched):
            if not self._free_slots:
                return
            if self._prefix_is_coming(request):
                continue
            if not self._start(request):
                return

    def _prefix_is_coming(self, request: Request) -> bool:
        if request.wants_prompt_logprobs or not self._cache.enabled:
            return False
        residents = self._running.values()
        return prefix_in_flight(request, self._matched(request), residents, self._cache.page_size)

    def _start(self, request: Request) -> bool:
        """Gives it a slot and pages; those who run keep what the steps in flight could take."""
        reserve = len(self._running) * max(1, STEPS_IN_FLIGHT // self._cache.page_size)
        home = take_residence(request, self._free_slots[0], self._cache, reserve, alone=not self._running)
        if home is None:
            return False
        self._free_slots.popleft()
        self._waiting.admit(request)
        self._running[home.slot] = request
        request.phase = Phase.RUNNING
        request.home = home
        if request.cached_tokens is None:
            request.cached_tokens = home.planned
            self._cached_tokens += home.planned
        return True

    # Pages

    def _secure_page(self, request: Request) -> bool:
        """A page for the next token, if need be at the cost of whoever came last.

        False: the pages come back with the steps in flight, and the row skips this one.
        """
        while request.phase is Phase.RUNNING and not self._planner.has_page(request):
            if any(other.phase is Phase.RETRACTING for other in self._running.values()):
                return False
            self._retract(max(self._active(), key=lambda other: (other.priority, other.arrival)))
        return request.phase is Phase.RUNNING

    def _retract(self, request: Request) -> None:
        """Back to waiting, once the steps that name it are over."""
        self._retractions += 1
        request.phase = Phase.RETRACTING
        self._settle(request)

    # Results

    def _take_tokens(self, flight: StepInFlight, result: StepResult) -> None:
        tokens = np.frombuffer(result.tokens, np.int32).tolist()
        states = np.frombuffer(result.states, np.int32).tolist()
        logprobs = {part.slot: part.logprobs for part in result.logprobs}
        for request, token, state in zip(flight.sampled, tokens, states, strict=True):
            request.residence.sampling -= 1
            if request.phase is Phase.ENDED:
                continue
            packed = token.to_bytes(TOKEN_BYTES, "little")
            request.tokens += packed
            self._output_tokens += 1
            error = request.constraint.accept(token, state) if request.constraint else None
            if error is not None:
                self._fail(request, error)
                continue
            finish = ending(request, token, self._eos)
            self._replies.token(request, packed, logprobs.get(request.residence.slot), finish)
            if finish is not None:
                self._end(request)

    def _take_error(self, request: Request, error: RowError) -> None:
        request.residence.faulty = error.kind == "not_a_number"
        complete = request.constraint is not None and request.output_length < request.sampling.min_tokens
        if error.kind == "nothing_allowed" and complete and request.phase is not Phase.ENDED:
            self._replies.end(request, "stop")  # the grammar allows the end alone, `min_tokens` not even that
            self._end(request)
        else:
            self._fail(request, error.message)

    def _finish_prompts(self, flight: StepInFlight) -> None:
        """Requests for no output at all end with their prompt."""
        for request in flight.rows:
            if request.phase is Phase.RUNNING and request.sampling.max_tokens == 0:
                home = request.residence
                if not home.prefilling and home.last_step == flight.step:
                    self._replies.end(request, "length")
                    self._end(request)

    def _fail(self, request: Request, message: str) -> None:
        if request.phase is not Phase.ENDED:
            self._replies.end(request, "error", message)
            self._end(request)

    def _end(self, request: Request) -> None:
        """It is planned no more. What it holds comes back with the last step that names it."""
        del self._open[request.id]
        if request.phase is Phase.COMPILING:
            self._grammars.cancel(request.id)
        elif request.phase is Phase.WAITING:
            self._waiting.remove(request)
            self._release_grammar(request)
        request.phase = Phase.ENDED
        if request.home is not None:
            self._settle(request)

    def _copy_is_made(self, request: Request, step: int) -> None:
        home = request.residence
        if home.copy_step == step:
            self._cache.copied(home.lease)
            home.copy_step = None

    def _settle(self, request: Request) -> None:
        """Takes back slot and pages of a request that is planned no more, if no step names it."""
        home = request.residence
        in_flight = self._in_flight and home.last_step >= self._in_flight[0].step
        if request.phase is Phase.RUNNING or in_flight:
            return
        if home.faulty:
            self._cache.discard(home.lease, home.pages)
        else:
            existing = min(home.planned, request.length)
            self._cache.release(home.lease, request.slice(0, existing), home.pages)
        del self._running[home.slot]
        self._free_slots.append(home.slot)
        request.home = None
        if request.phase is Phase.RETRACTING:
            request.phase = Phase.WAITING
            request.prompt_logprobs = []
            self._waiting.add_first(request)
        else:
            self._release_grammar(request)

    def _release_grammar(self, request: Request) -> None:
        if request.constraint is not None:
            self._grammars.release(request.constraint)
            request.constraint = None

    # Masks

    def _send_masks(self) -> None:
        """The oldest step's masks: by now every token that they depend on is known."""
        if not self._in_flight or self._in_flight[0].masks_sent:
            return
        flight = self._in_flight[0]
        flight.masks_sent = True
        masked = flight.host_masked
        if not masked:
            return
        alive = [request for request in masked if request.phase is not Phase.ENDED]
        masks = np.empty((len(alive), self._mask_words), np.int32)
        for request, mask in zip(alive, masks, strict=True):
            assert request.constraint is not None
            request.constraint.fill_mask(mask)
        slots = np.array([request.residence.slot for request in alive], np.int32)
        self._to_model.append(StepMasks(flight.step, slots.tobytes(), masks.tobytes()))
