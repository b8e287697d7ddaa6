"""The scheduler's state machine: requests in, step plans out, results in, outputs out.

It has no sockets and no clock. `plan` may be called one step ahead of the results: rows of the next
step then feed tokens that are still being sampled.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict

from ...grammars import BusyError, CompilerError, GrammarError
from ...radix_cache import PrefixCache
from ..messages import (
    Accepted,
    CacheControl,
    DropCache,
    Fetched,
    Forgotten,
    Found,
    Generate,
    LeftOut,
    Message,
    PageStoreInbox,
    Refused,
    Stats,
    StepResult,
    StoreCounts,
    StoreReport,
)
from .admission import Limits, no_place, pages_for, refusal, without_grammar
from .budget import StepBudget
from .cache_desk import CacheDesk
from .counts import Counts
from .fairness import USUAL_BOUNDS, Bounds, Fairness
from .forced_runs import Segments
from .grammar_desk import GrammarDesk
from .places import Places, Turnover
from .plan import StepInFlight, StepPlanner, step_masks
from .replies import Replies, banned_tokens
from .request import Phase, Request
from .results import Results
from .starting import STEPS_IN_FLIGHT, Starter
from .stored_pages import StoredPages


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
        segments: Segments,
        bounds: Bounds = USUAL_BOUNDS,
        host_pages: int = 0,
        write_through: bool = False,
    ) -> None:
        self._limits = limits
        self._cache = cache
        self._cache_desk = CacheDesk(cache, limits.most_pinned)
        self._budget = budget
        self._grammars = grammars
        self._mask_words = -(-vocab_size // 32)
        self._eos = frozenset(eos_tokens)
        self._planner = StepPlanner(cache, limits.num_pages, lambda r: banned_tokens(r, self._eos))
        self._open: dict[str, Request] = {}  # every request that isn't answered to its end
        self._fairness = Fairness(bounds.ahead, own_priorities=limits.keys > 1)
        self._stored = StoredPages(cache, host_pages, write_through)
        self._store_counts = StoreCounts()
        self._starter = Starter(cache, self._stored, limits.slots, grammars, self._fairness, bounds)
        self._waiting = self._starter.waiting
        self._places = Places(limits.max_waiting, limits.keys)
        self._turnover = Turnover(self._places)
        self._running: dict[int, Request] = {}  # by slot; ended ones too until their last step is over
        self._in_flight: deque[StepInFlight] = deque()
        self._drops: deque[tuple[DropCache, set[str]]] = deque()  # with the requests that they wait for
        self._replies = Replies()
        self._to_model: list[Message] = []
        self._arrivals = 0
        self._counts = Counts()
        self._results = Results(
            segments, self._eos, self._replies, self._counts, self._fairness, self._open, self._end
        )

    # What comes from the tokenizer processes

    def submit(self, message: Generate) -> None:
        """Answered by `Accepted` or `Refused`; if it has a grammar, once that is compiled."""
        refused = refusal(message, self._limits, self._cache_desk.pins.withheld(message))
        if refused is None and not self._places.has_room(message.tenant):
            refused = no_place(message, self._places, self._turnover.retry_after(message.tenant))
        if refused is not None:
            self._replies.add(message.client, refused)
            return
        self._places.take(message.tenant)
        self._arrivals += 1
        request = Request.from_message(message, self._arrivals)
        self._open[request.id] = request
        self._stored.look_up(request)
        if message.grammar is None:
            self._accept(request)
        else:
            self._grammars.submit(request.id, message.grammar, message.sampling.complete_json, message.tenant)

    def take_grammars(self) -> None:
        """Takes in the grammars that were compiled meanwhile.

        All constraints are made before the first is used. Each sends a question to its grammar's process when
        it is made, so the processes work on their answers side by side.
        """
        for request_id, compiled in list(self._grammars.finished()):
            request = self._open.get(request_id)
            if request is None:
                continue
            if isinstance(compiled, GrammarError | CompilerError | BusyError):
                self._refuse(request, without_grammar(request, compiled))
            else:
                request.constraint = compiled
                refused = self._results.completion.refusal(request)
                self._accept(request) if refused is None else self._refuse(request, refused)

    def grammars_due_in(self) -> float | None:
        """Seconds until `take_grammars` has something to do, whether or not a grammar is ready."""
        return self._grammars.due_in()

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

    def control_cache(self, message: CacheControl, now: float) -> None:
        """`now` is in seconds since 1970."""
        if isinstance(message, DropCache):
            ended = {request.id for request in self._running.values()} - self._open.keys()
            self._drops.append((message, ended))
            self._drop_what_is_free()
            return
        needs = [pages_for(request.max_length, self._cache.page_size) for request in self._open.values()]
        answer = self._cache_desk.answer(message, now, max(needs, default=0), self._store_counts)
        self._replies.add(message.client, answer)

    def _drop_what_is_free(self) -> None:
        """A drop waits for those who were answered before it and still have pages."""
        while self._drops:
            message, ended = self._drops[0]
            if any(request.id in ended for request in self._running.values()):
                return
            self._drops.popleft()
            dropped = self._cache_desk.drop(message)
            if self._stored.enabled:
                self._to_model.append(self._stored.forget(message, dropped, self._open.values()))
            else:
                self._replies.add(message.client, dropped)

    def found(self, message: Found) -> None:
        self._stored.found(message)

    def fetch_ahead(self) -> None:
        """Asks for stored pages of those who wait, as far as there is room for them."""
        self._starter.fetch_ahead()

    def fetched(self, message: Fetched) -> None:
        self._stored.fetched(message)

    def forgotten(self, message: Forgotten) -> None:
        self._replies.add(message.client, message.dropped)

    def take_store_report(self, report: StoreReport) -> None:
        self._store_counts = report.counts

    def flush(self) -> None:
        """Before the end: the page store shall have what the cache holds."""
        self._to_model.append(self._stored.flush())

    def tick(self, now: float) -> None:
        """The loop has planned what it can. `now` is in seconds of a clock that never goes back."""
        self._turnover.tick(now, busy=bool(self._waiting))

    def expire_pins(self, now: float) -> None:
        self._cache_desk.pins.expire(now)

    @property
    def next_expiry(self) -> float | None:
        """When a pin expires next, in seconds since 1970."""
        return self._cache_desk.pins.next_expiry

    # Steps

    def plan(self) -> bool:
        """Plans the next step, unless there is nothing to do or enough steps are in flight."""
        if len(self._in_flight) >= STEPS_IN_FLIGHT:
            return False
        self._admit()
        decoding, prefilling = self._ready()
        planned = self._planner.build(decoding, prefilling, self._budget)
        if planned is None:
            return False
        plan, flight = planned
        for request in prefilling:
            if not request.residence.prefilling:
                self._fairness.rest(request)
        for request in flight.restored:
            if not request.residence.restoring:
                self._stored.end(request)
        self._stored.attach(plan, flight)
        self._counts.prompt_tokens_computed += flight.prefill_tokens - flight.forced_tokens
        self._in_flight.append(flight)
        self._to_model += self._grammars.take_loads()
        self._to_model.append(plan)
        self._send_masks()
        return True

    def apply(self, result: StepResult) -> None:
        """Takes in the oldest step in flight."""
        flight = self._in_flight[0]
        assert flight.step == result.step, f"result of step {result.step}, expected {flight.step}"
        self._counts.steps += 1
        if flight.restored:
            self._budget.observe_restore(flight.restored_tokens, result.restored_ms)
        else:
            self._budget.observe(flight.prefill_tokens, result.elapsed_ms)
        for request in flight.rows:
            self._copy_is_made(request, flight.step)
        self._results.take(flight, result)
        self._in_flight.popleft()
        self._send_masks()
        self._to_model += self._stored.save(flight)
        for request in flight.requests:
            if request.home is not None:
                self._settle(request)

    @property
    def idle(self) -> bool:
        return not self._open and not self._running

    def messages_to_model(self) -> list[Message]:
        messages, self._to_model = self._to_model, []
        return messages

    def messages_to_store(self) -> list[PageStoreInbox]:
        return self._stored.messages_to_store()

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
            pages_pinned=pages.pinned,
            evicted_pages=pages.evicted_pages,
            store=self._store_counts,
            **asdict(self._counts),
        )

    # Admission

    def _accept(self, request: Request) -> None:
        request.phase = Phase.WAITING
        self._starter.enter(request, self._running.values())
        left_out = request.constraint.left_out if request.constraint is not None else ()
        named = [LeftOut(keyword, path) for keyword, path in left_out]
        self._replies.add(request.client, Accepted(request.id, named))
        self._results.force(request)

    def _refuse(self, request: Request, refused: Refused) -> None:
        del self._open[request.id]
        self._places.give_back(request.tenant)
        self._stored.end(request)
        self._replies.add(request.client, refused)

    def _active(self) -> list[Request]:
        return [request for request in self._running.values() if request.phase is Phase.RUNNING]

    def _admit(self) -> None:
        decoding = sum(not request.residence.prefilling for request in self._active())
        tokens = self._budget.prefill_tokens(decoding), self._budget.restored_tokens(decoding)
        for request in self._starter.starts(self._running, *tokens):
            self._running[request.residence.slot] = request
            self._places.give_back(request.tenant)
            if not request.residence.restoring:
                self._stored.end(request)
            if request.cached_tokens is None:
                request.cached_tokens = min(request.residence.ready, request.prompt_length)
                self._counts.prompt_tokens_cached += request.cached_tokens
                if request.namespace is not None:
                    self._cache_desk.hits.add(request.prompt_length, request.cached_tokens)

    # Pages

    def _ready(self) -> tuple[list[Request], list[Request]]:
        """Who decodes, and who has more than one token to compute: forced ones first, then prompts."""
        wanting = [request for request in self._active() if self._planner.wants_page(request)]
        secured = [request for request in wanting if self._secure_page(request)]
        going_on = [request for request in secured if request.phase is Phase.RUNNING]
        jumping = [request for request in going_on if request.residence.jumping]
        decoding = [request for request in going_on if not request.residence.jumping]
        prompts = [request for request in self._running.values() if request.computes_prompt]
        return decoding, jumping + self._leaving() + self._starter.in_turn(prompts)

    def _leaving(self) -> list[Request]:
        """Who still has forced tokens to compute. Nobody makes room for them."""
        residents = self._running.values()
        leaving = [r for r in residents if r.phase is Phase.LEAVING and r.residence.prefilling]
        for request in leaving:
            if not self._planner.has_page(request):
                self._end(request)
        return [request for request in leaving if request.phase is Phase.LEAVING]

    def _secure_page(self, request: Request) -> bool:
        """A page for the next token, if need be by retracting the youngest request.

        False: the pages come back with the steps in flight, and the row skips this one.
        """
        while request.phase is Phase.RUNNING and not self._planner.has_page(request):
            if any(other.phase is Phase.RETRACTING for other in self._running.values()):
                return False
            self._retract(self._last_in_turn())
        return request.phase is Phase.RUNNING

    def _last_in_turn(self) -> Request:
        """The youngest of the last priority; of the youngest's tenant, if that orders its own alone."""
        active = self._active()
        if self._fairness.own_priorities:
            youngest = max(active, key=lambda request: request.arrival)
            active = [request for request in active if request.tenant == youngest.tenant]
        return max(active, key=lambda request: (request.priority, request.arrival))

    def _retract(self, request: Request) -> None:
        """Back to waiting, once the steps that name it are over."""
        self._counts.retractions += 1
        request.phase = Phase.RETRACTING
        self._stored.end(request)
        self._settle(request)

    # Ends

    def _end(self, request: Request) -> None:
        """It is planned no more. What it holds comes back with the last step that names it."""
        self._open.pop(request.id, None)
        if request.phase in (Phase.COMPILING, Phase.WAITING):
            self._places.give_back(request.tenant)
        if request.phase is Phase.COMPILING:
            self._grammars.cancel(request.id)
        elif request.phase is Phase.WAITING:
            self._waiting.remove(request)
        if request.phase is not Phase.COMPILING:
            self._fairness.rest(request)
        self._stored.end(request)
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
        if request.phase in (Phase.RUNNING, Phase.LEAVING) or in_flight:
            return
        if home.faulty:
            self._cache.discard(home.lease, home.pages)
            self._to_model += self._stored.discard(request)
        else:
            self._to_model += self._stored.leave(request)
            existing = min(home.planned, request.length) if home.last_step else home.lease.matched
            self._cache.release(
                home.lease, request.slice(0, existing), home.pages, generated=request.output_length
            )
        del self._running[home.slot]
        self._starter.leave(request)
        self._drop_what_is_free()
        if request.phase is Phase.RETRACTING:
            request.phase = Phase.WAITING
            request.prompt_logprobs = []
            self._places.take(request.tenant)
            self._stored.look_up(request)
            self._starter.enter(request, self._running.values(), first=True)
        else:
            self._turnover.ended()

    # Masks

    def _send_masks(self) -> None:
        """The oldest step's masks: by now every token that they depend on is known."""
        if not self._in_flight or self._in_flight[0].masks_sent:
            return
        flight = self._in_flight[0]
        flight.masks_sent = True
        if flight.host_masked:
            self._to_model.append(step_masks(flight, self._mask_words))
