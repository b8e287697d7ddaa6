"""The scheduler's state machine: requests and step results in, step plans and outputs out.

It has no sockets and no clock. `plan` may run one step ahead of the results: rows of the next step then
use tokens that are not known yet.
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
    ExplainPrompt,
    Fetched,
    Forgotten,
    Found,
    Generate,
    LeftOut,
    Located,
    Message,
    PageStoreInbox,
    QueryTree,
    Refused,
    Stats,
    StepResult,
    StoreCounts,
    StoreReport,
)
from .admission import Admission
from .allocation import pages_for
from .budget import StepBudget
from .cache_control import CacheController
from .completion import Completion
from .counts import Counts
from .fairness import USUAL_BOUNDS, Bounds, Fairness
from .forced_runs import Segments
from .grammar_loader import GrammarLoader
from .lifecycle import Lifecycle
from .orders import Order, Orders
from .plan import STEPS_IN_FLIGHT, StepInFlight, StepPlanner, step_masks
from .queue_places import QueuePlaces
from .refusals import Limits, grammar_refusal, queue_full, refusal
from .replies import Replies, banned_tokens
from .request import Phase, Request
from .results import Results, StepOutcome
from .retraction import Retraction
from .retry_times import RetryTimes
from .stored_pages import StoredPages
from .tree_reports import TreeReports
from .wait_budget import WaitBudget
from .waiting_queue import WaitingQueue


class Scheduler:
    """Connects phases of requests (`Lifecycle`), starts (`Admission`), steps (`StepPlanner`) and replies."""

    def __init__(
        self,
        limits: Limits,
        cache: PrefixCache,
        budget: StepBudget,
        grammars: GrammarLoader,
        vocab_size: int,
        eos_tokens: tuple[int, ...],
        segments: Segments,
        bounds: Bounds = USUAL_BOUNDS,
        host_pages: int = 0,
        write_through: bool = False,
        wait_budget: WaitBudget | None = None,
    ) -> None:
        self._limits = limits
        self._cache = cache
        self._cache_control = CacheController(cache, limits.most_pinned)
        self._budget = budget
        self._grammars = grammars
        self._mask_words = -(-vocab_size // 32)
        eos = frozenset(eos_tokens)
        self._planner = StepPlanner(
            cache, limits.num_pages, lambda request: banned_tokens(request, eos), limits.group_cost
        )
        self._fairness = Fairness(
            bounds.ahead, own_priorities=limits.keys > 1 and not limits.bounded_priorities
        )
        self._stored = StoredPages(cache, host_pages, write_through)
        self._store_counts = StoreCounts()
        self._places = QueuePlaces(limits.max_waiting, limits.keys)
        self._retry_times = RetryTimes(self._places)
        self._to_model: list[Message] = []
        self._requests = Lifecycle(
            cache,
            self._cache_control.leases,
            self._stored,
            grammars,
            self._fairness,
            WaitingQueue(self._fairness, bounds),
            self._places,
            self._retry_times,
            limits.slots,
            self._to_model,
        )
        self._admission = Admission(cache, self._stored, self._requests, self._fairness, bounds)
        self._in_flight: deque[StepInFlight] = deque()
        self._replies = Replies()
        self._tree_reports = TreeReports(cache, self._replies, has_store=host_pages > 0)
        self._counts = Counts()
        self._retraction = Retraction(self._requests, self._planner, self._fairness, self._counts)
        self._orders = Orders(
            self._requests, self._cache_control, self._stored, self._replies, self._to_model
        )
        self._completion = Completion(segments, eos)
        self._wait_budget = wait_budget or WaitBudget()
        self._compiled: dict[str, Request] = {}  # not accepted yet: their grammar's process has not answered
        self._results = Results(
            self._completion,
            segments,
            eos,
            self._replies,
            self._counts,
            self._fairness,
            self._wait_budget,
        )

    # Messages of the tokenizer processes

    def submit(self, message: Generate, now: float = 0.0) -> None:
        """The answer is `Accepted` or `Refused`; for a request with a grammar, once that is compiled.

        `now` is in seconds of a monotonic clock.
        """
        refused = refusal(message, self._limits, self._cache_control.pins.withheld(message))
        if refused is None and not self._places.admits(message.tenant):
            retry_after = self._retry_times.retry_after(message.tenant, hash(message.prompt))
            refused = queue_full(message, self._places, retry_after)
        if refused is not None:
            self._replies.add(message.client, refused)
            return
        self._cache_control.leases.arrive(message)
        request = self._requests.create(message)
        request.arrived_at = now
        if message.grammar is None:
            self._accept(request)
        else:
            self._grammars.submit(request.id, message.grammar, message.sampling.complete_json, message.tenant)

    def take_grammars(self) -> None:
        """Accepts or refuses the requests whose grammars were compiled meanwhile.

        All constraints are made before the first is used. Each sends a question to its grammar's process when
        it is made, so the processes work on their answers side by side.
        """
        for request_id, compiled in list(self._grammars.finished()):
            request = self._requests.find(request_id)
            if request is None:
                continue
            if isinstance(compiled, GrammarError | CompilerError | BusyError):
                self._refuse(request, grammar_refusal(request, compiled))
            else:
                request.constraint = compiled
                self._compiled[request.id] = request
        for request in list(self._compiled.values()):
            if request.is_answered:
                del self._compiled[request.id]
            elif self._wait_budget.is_ready(request):
                del self._compiled[request.id]
                refused = self._completion.refusal(request)
                self._accept(request) if refused is None else self._refuse(request, refused)

    def drop(self, request_id: str) -> None:
        """Ends a request without a reply: a stop string completed it, or its client is gone."""
        request = self._requests.find(request_id)
        if request is not None:
            self._requests.end(request)

    def drop_client(self, client: int) -> None:
        """Ends the requests of a tokenizer process that died."""
        for request in [request for request in self._requests.open if request.client == client]:
            self._requests.end(request)
        self._orders.drop_client(client)
        self._replies.drop_client(client)
        self._tree_reports.drop_client(client)

    def query(self, client: int, query: int) -> None:
        self._replies.add(client, self.stats(query))

    def control_cache(self, message: CacheControl, now: float) -> None:
        """`now` is in seconds since 1970."""
        if isinstance(message, DropCache | ExplainPrompt):
            self._orders.add(message)
            return
        if isinstance(message, QueryTree):
            self._tree_reports.answer(message, now, self._requests.waiting)
            return
        needs = [pages_for(request.max_length, self._cache.page_size) for request in self._requests.open]
        answer = self._cache_control.answer(message, now, max(needs, default=0), self._store_counts)
        self._replies.add(message.client, answer)

    def order(self, order: Order) -> None:
        """Carries out the order once the requests that have ended are released."""
        self._orders.add(order)

    # Messages of the page store

    def found(self, message: Found) -> None:
        self._stored.found(message)

    def fetch_ahead(self) -> None:
        """Fetches stored pages of waiting requests, as far as host memory allows."""
        self._admission.fetch_ahead()

    def fetched(self, message: Fetched) -> None:
        self._stored.fetched(message)

    def located(self, message: Located) -> None:
        self._tree_reports.located(message)

    def forgotten(self, message: Forgotten) -> None:
        self._replies.add(message.client, message.dropped)

    def take_store_report(self, report: StoreReport) -> None:
        self._store_counts = report.counts

    def flush(self) -> None:
        """Has the page store save what the cache holds, before the process ends."""
        self._to_model.append(self._stored.flush())

    # Time

    def tick(self, now: float) -> None:
        """Notes the time, and whether requests still wait now that all possible steps are planned. `now` is
        in seconds of a monotonic clock."""
        self._retry_times.tick(now, busy=bool(self._requests.waiting))

    def expire_leases(self, now: float) -> None:
        """Ends the leases and pins whose time is over, and sends tree reports that have waited too long for
        the page store. `now` is in seconds since 1970."""
        self._cache_control.expire(now)
        self._tree_reports.expire(now)

    @property
    def next_expiry(self) -> float | None:
        """When the next lease, pin or wait for the page store ends, in seconds since 1970."""
        ends = [self._cache_control.next_expiry, self._tree_reports.next_expiry]
        return min((end for end in ends if end is not None), default=None)

    # Steps

    def begin_turn(self) -> None:
        """Begins a turn of the loop: resumes the requests whose grammar's process has answered by now."""
        self._wait_budget.renew()
        self._conclude(self._results.take_late())

    @property
    def awaits_answers(self) -> bool:
        """Whether some request waits for its grammar's process; then the next turn must begin soon."""
        return self._results.has_late or bool(self._compiled)

    def plan(self, now: float = 0.0) -> bool:
        """Plans the next step; False if there is nothing to do or enough steps are in flight.

        `now` is in seconds of the clock of `submit`.
        """
        if len(self._in_flight) >= STEPS_IN_FLIGHT:
            return False
        self._admit(now)
        decoding, prefilling = self._rows()
        self._orders.carry_out()
        planned = self._planner.build(decoding, prefilling, self._requests.streams_text, self._budget)
        if planned is None:
            return False
        plan, flight = planned
        for request in prefilling:
            if not request.allocation.prefilling:
                self._fairness.rest(request)
        for request in flight.restored:
            if not request.allocation.restoring:
                self._stored.end(request)
        self._stored.attach(plan, flight)
        self._counts.prompt_tokens_computed += flight.prefill_tokens - flight.forced_tokens
        self._in_flight.append(flight)
        self._to_model += self._grammars.take_loads()
        self._to_model.append(plan)
        self._send_masks()
        return True

    def apply(self, result: StepResult) -> None:
        """Applies the result of the oldest step in flight."""
        flight = self._in_flight[0]
        assert flight.step == result.step, f"result of step {result.step}, expected {flight.step}"
        self._counts.steps += 1
        if flight.restored:
            self._budget.observe_restore(flight.restored_tokens, result.restored_ms)
        else:
            self._budget.observe(flight.prefill_tokens, result.elapsed_ms)
        self._planner.copies_made(flight)
        self._conclude(self._results.take(flight, result))
        self._in_flight.popleft()
        self._send_masks()
        self._to_model += self._stored.save(flight)
        self._requests.step_done(flight)
        self._orders.carry_out()

    @property
    def idle(self) -> bool:
        return self._requests.idle

    def messages_to_model(self) -> list[Message]:
        messages = self._to_model.copy()
        self._to_model.clear()
        return messages

    def messages_to_store(self) -> list[PageStoreInbox]:
        return self._stored.messages_to_store() + self._tree_reports.messages_to_store()

    def messages_to_clients(self) -> dict[int, list[Message]]:
        return self._replies.take()

    def stats(self, query: int = 0) -> Stats:
        pages = self._cache.stats()
        return Stats(
            query=query,
            running=len(self._requests.running),
            waiting=len(self._requests.waiting),
            pages_total=pages.total,
            pages_used=pages.held + pages.locked,
            pages_cached=pages.evictable,
            pages_pinned=pages.pinned,
            evicted_pages=pages.evicted_pages,
            store=self._store_counts,
            leases=self._cache_control.leases.counts(),
            pages_leased=self._cache.leases.num_pages,
            broken_leases=self._cache_control.leases.num_broken,
            **asdict(self._counts),
        )

    def _accept(self, request: Request) -> None:
        self._requests.wait(request)
        left_out = request.constraint.left_out if request.constraint is not None else ()
        named = [LeftOut(keyword, path) for keyword, path in left_out]
        self._replies.add(request.client, Accepted(request.id, named))
        self._results.force(request)

    def _conclude(self, outcome: StepOutcome) -> None:
        for request in outcome.answered:
            self._requests.answer(request)
        for request in outcome.ended:
            self._requests.end(request)

    def _refuse(self, request: Request, refused: Refused) -> None:
        self._requests.refuse(request)
        self._replies.add(request.client, refused)

    def _admit(self, now: float = 0.0) -> None:
        """Starts the requests that the next step has tokens for."""
        self._start_requests(now)
        while self._retraction.make_way(self._admission.shortage):
            self._start_requests(now)

    def _start_requests(self, now: float) -> None:
        """Starts requests, and counts their cached tokens."""
        decoding = sum(not request.allocation.prefilling for request in self._requests.running)
        rows = (decoding, self._requests.streams_text)
        tokens, restored = self._budget.prefill_tokens(*rows), self._budget.restored_tokens(*rows)
        for request in self._admission.admit(tokens, restored):
            if request.cached_tokens is None:
                request.cached_tokens = min(request.allocation.ready, request.prompt_length)
                request.queued_s = now - request.arrived_at
                self._counts.prompt_tokens_cached += request.cached_tokens
                if request.namespace is not None:
                    self._cache_control.hits.add(request.prompt_length, request.cached_tokens)

    def _rows(self) -> tuple[list[Request], list[Request]]:
        """Requests that decode one token, and those that compute several: forced tokens, then prompts."""
        wanting = [request for request in self._requests.running if self._planner.wants_page(request)]
        ready = [request for request in wanting if self._retraction.secure_pages(request)]
        ready = [request for request in ready if request.phase is Phase.RUNNING]
        forced = [request for request in ready if request.allocation.has_forced]
        decoding = [request for request in ready if not request.allocation.has_forced]
        prompts = [request for request in self._requests.residents.values() if request.computes_prompt]
        return decoding, forced + self._answered() + self._admission.in_order(prompts)

    def _answered(self) -> list[Request]:
        """Answered requests with forced tokens to compute. They end early if pages run short."""
        residents = list(self._requests.residents.values())
        answered = [each for each in residents if each.phase is Phase.ANSWERED and each.allocation.prefilling]
        for request in answered:
            if not self._planner.ensure_pages(request):
                self._requests.end(request)
        return [request for request in answered if request.phase is Phase.ANSWERED]

    def _send_masks(self) -> None:
        """Sends the masks of the oldest step in flight: every token that they depend on is known now."""
        if not self._in_flight or self._in_flight[0].masks_sent:
            return
        flight = self._in_flight[0]
        flight.masks_sent = True
        if flight.host_masked:
            self._results.sit_out(flight)
            self._to_model.append(step_masks(flight, self._mask_words))
