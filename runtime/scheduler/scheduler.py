"""The scheduler's state machine: messages in, messages out.

It has no sockets and no clock. It plans one step ahead of the results: rows of the next step then use tokens
that are not known yet.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict
from typing import NamedTuple, assert_never

from ...radix_cache import PrefixCache
from ..messages import (
    Abort,
    AdapterRead,
    AwaitTools,
    CheckPin,
    Drain,
    DropCache,
    EndLease,
    ExplainPrompt,
    Finish,
    Generate,
    GroupPages,
    Load,
    LoadAdapter,
    Message,
    ModelReady,
    PagesFetched,
    PagesFlushed,
    PagesForgotten,
    PagesFound,
    PagesLocated,
    PageStoreInbox,
    PeerDown,
    PinPrefix,
    QueryCache,
    QueryNode,
    QueryRequests,
    QueryStats,
    SchedulerInbox,
    Stats,
    StepResult,
    StoreReport,
    UnloadAdapter,
    UnpinPrefix,
    WatchAdapters,
    WatchReplica,
)
from .adapters import AdapterRegistry
from .admission import Admission
from .arrivals import Arrivals
from .backlog import Backlog
from .budget import StepBudget
from .cache_control import CacheController
from .completion import Completion
from .counts import Counts, HitCounter, list_requests
from .fairness import USUAL_BOUNDS, Bounds, Fairness
from .forced_runs import ForcedTokenizer
from .grammar_loader import GrammarLoader
from .key_rates import KeyRates
from .lease_registry import LeaseRegistry
from .lifecycle import Lifecycle
from .plan import MAX_STEPS_IN_FLIGHT, StepInFlight, StepPlanner, step_masks
from .queue_places import QueuePlaces
from .refusals import Limits
from .replies import Replies, list_banned_tokens
from .request import Phase, Request
from .results import Results, StepOutcome, WaitBudget
from .retraction import Retraction
from .routing_reports import RoutingReports
from .stored_pages import StoredPages
from .waiting_queue import WaitingQueue

ANSWER_POLL_S = 0.005  # seconds between two checks for late answers of grammars' processes

log = logging.getLogger("arbora.scheduler")


class Now(NamedTuple):
    """The time by two clocks."""

    monotonic: float = 0.0  # seconds of a clock that never jumps, for durations
    wall: float = 0.0  # seconds since 1970, for times that clients see


class Outgoing(NamedTuple):
    """The messages that a turn sends, in order for each receiver."""

    to_model: list[Message]
    to_store: list[PageStoreInbox]
    to_clients: dict[int, list[Message]]


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
        tokenizer: ForcedTokenizer,
        bounds: Bounds = USUAL_BOUNDS,
        host_pages: int = 0,
        write_through: bool = False,
        asks_prefill: bool = False,
        wait_budget: WaitBudget | None = None,
        adapters: AdapterRegistry | None = None,
    ) -> None:
        self._cache = cache
        self._budget = budget
        self._grammars = grammars
        self._adapters = adapters or AdapterRegistry()
        self._mask_words = -(-vocab_size // 32)
        eos = frozenset(eos_tokens)
        self._planner = StepPlanner(cache, lambda request: list_banned_tokens(request, eos), limits)
        self._fairness = Fairness(
            bounds.ahead, own_priorities=limits.keys > 1 and not limits.bounded_priorities
        )
        self._key_rates = KeyRates()
        self._stored = StoredPages(cache, host_pages, write_through, asks_prefill)
        self._places = QueuePlaces(limits.max_waiting, limits.keys)
        self._leases = LeaseRegistry(cache, limits.max_pinned)
        self._requests = Lifecycle(
            cache,
            self._leases,
            self._stored,
            grammars,
            self._fairness,
            WaitingQueue(self._fairness, bounds),
            self._places,
            limits,
            self._adapters,
        )
        self._admission = Admission(cache, self._stored, self._requests, self._fairness, bounds)
        self._in_flight: deque[StepInFlight] = deque()
        self._replies = Replies()
        self._counts = Counts()
        self._hits = HitCounter(self._counts)
        self._cache_control = CacheController(
            cache,
            self._leases,
            self._stored,
            self._requests,
            self._hits,
            self._replies,
            has_drafts=limits.max_sampled > 1,
        )
        self._retraction = Retraction(self._requests, self._planner, self._fairness, self._counts)
        completion = Completion(tokenizer, eos)
        self._wait_budget = wait_budget or WaitBudget()
        self._results = Results(
            completion, tokenizer, eos, self._replies, self._counts, self._fairness, self._wait_budget
        )
        self._arrivals = Arrivals(
            cache,
            limits,
            self._key_rates,
            self._places,
            self._leases,
            self._requests,
            grammars,
            completion,
            self._results,
            self._replies,
            self._wait_budget,
        )
        self._backlog = Backlog(self._requests, budget, limits.slots, self._in_flight)
        self._reports = RoutingReports(cache, self.measure_load, self._replies)
        self._to_model: list[Message] = []
        self._is_draining = False
        self._is_flushing = self._is_flushed = not self._stored.enabled

    def turn(self, messages: Iterable[SchedulerInbox], now: Now) -> Outgoing:
        """Handles the messages, does what is due, and plans all possible steps."""
        self._wait_budget.renew()
        for message in messages:
            self.handle(message, now)
        self.update(now)
        while self.plan(now):
            pass
        self._places.tick(now.monotonic, busy=bool(self._requests.waiting))
        self._reports.send()
        return self.take_outgoing()

    def handle(self, message: SchedulerInbox, now: Now) -> None:
        match message:
            case StepResult():
                self._apply(message)
            case Generate():
                if not self._adapters.hold_back(message):
                    self._submit(message, now.monotonic)
            case WatchAdapters() | LoadAdapter() | UnloadAdapter():
                self._adapters.handle(message, self._replies)
            case AdapterRead():
                for waited in self._adapters.take_read(message, self._replies):
                    self._submit(waited, now.monotonic)
            case Abort() | Finish():
                self._drop(message.request)
            case (
                AwaitTools()
                | EndLease()
                | QueryCache()
                | QueryNode()
                | DropCache()
                | CheckPin()
                | PinPrefix()
                | UnpinPrefix()
                | ExplainPrompt()
            ):
                self._cache_control.handle(message, now.wall)
            case QueryStats():
                self._replies.add(message.client, self.stats(message.query))
            case QueryRequests():
                answer = list_requests(self._requests.open, message, now.monotonic)
                self._replies.add(message.client, answer)
            case WatchReplica(client):
                self._reports.watch(client)
            case PeerDown():
                self._drop_client(message.client)
            case Drain():
                self._is_draining = True
            case PagesFound():
                self._stored.take_found(message)
            case PagesFetched():
                self._stored.take_fetched(message)
            case PagesLocated():
                self._cache_control.reports.take_located(message)
            case PagesForgotten():
                self._replies.add(message.client, message.dropped)
            case StoreReport():
                self._stored.counts = message.counts
            case PagesFlushed():
                self._is_flushed = True
            case ModelReady():
                log.warning("the model process said twice that it is ready")
            case _:
                assert_never(message)

    def update(self, now: Now) -> None:
        """Resumes requests whose grammar's process has answered, ends leases, pins and waits whose time is
        over, accepts requests whose grammars are compiled, fetches stored pages, and flushes when drained."""
        self._conclude(self._results.take_late())
        self._cache_control.expire(now.wall)
        self._arrivals.take_grammars()
        self._admission.fetch_ahead()
        if self._is_draining and self.idle and not self._is_flushing:
            self._is_flushing = True
            self._stored.flush()

    def max_wait_s(self, now: float) -> float | None:
        """Seconds after which the next turn must begin even without a message; None: at any time.

        `now` is in seconds since 1970.
        """
        ends_at = self._cache_control.next_expiry
        waits = [] if ends_at is None else [max(0.0, ends_at - now)]
        if self.awaits_answers:
            waits.append(ANSWER_POLL_S)
        return min(waits, default=None)

    @property
    def awaits_answers(self) -> bool:
        """Whether some request waits for its grammar's process; then the next turn must begin soon."""
        return self._results.has_late or self._arrivals.awaits_answers

    @property
    def idle(self) -> bool:
        return self._requests.idle and not self._adapters.has_waiting

    @property
    def is_drained(self) -> bool:
        """Whether `Drain` has come, all requests have ended, and the page store has what it should keep."""
        return self._is_draining and self.idle and self._is_flushed

    def take_outgoing(self) -> Outgoing:
        """Returns the messages since the last call."""
        to_model = [*self._to_model, *self._stored.take_messages_to_model(), *self._adapters.take_messages()]
        to_model += self._cache_control.take_messages_to_model()
        self._to_model = []
        to_store = [*self._stored.take_messages(), *self._cache_control.reports.take_messages()]
        to_clients = self._replies.take()
        for messages in to_clients.values():
            for message in messages:
                self._key_rates.see(message)
        return Outgoing(to_model, to_store, to_clients)

    def _submit(self, message: Generate, now: float) -> None:
        refused = self._adapters.find_refusal(message)
        if refused is None:
            self._arrivals.submit(message, now)
        else:
            self._replies.add(message.client, refused)

    def _drop(self, request_id: str) -> None:
        """Ends a request without a reply: a stop string completed it, or its client is gone."""
        self._adapters.forget(request_id)
        request = self._requests.find(request_id)
        if request is not None:
            self._requests.end(request)
        self._key_rates.end(request_id)

    def _drop_client(self, client: int) -> None:
        """Ends the requests of a tokenizer process that died."""
        for request in [request for request in self._requests.open if request.client == client]:
            self._requests.end(request)
        self._key_rates.drop_client(client)
        self._cache_control.drop_client(client)
        self._adapters.drop_client(client)
        self._reports.drop_client(client)
        self._replies.drop_client(client)

    def plan(self, now: Now) -> bool:
        """Plans the next step; False if there is nothing to do or enough steps are in flight."""
        if len(self._in_flight) >= MAX_STEPS_IN_FLIGHT:
            return False
        self._admit(now.monotonic)
        decoding, prefilling = self._choose_rows()
        self._cache_control.carry_out()
        planned = self._planner.build(decoding, prefilling, self._requests.streams_text, self._budget)
        if planned is None:
            return False
        plan, flight = planned
        plan.ended = self._requests.take_ended()
        for request in prefilling:
            if not request.allocation.prefilling:
                self._fairness.rest(request)
        for request in flight.restored:
            if not request.allocation.restoring:
                self._stored.end(request)
        self._stored.attach(plan, flight)
        self._counts.prompt_tokens_computed += flight.prefill_tokens - flight.forced_tokens
        self._in_flight.append(flight)
        self._to_model += [*self._stored.take_messages_to_model(), *self._grammars.take_loads(), plan]
        self._send_masks()
        return True

    def _apply(self, result: StepResult) -> None:
        """Applies a result, which belongs to the oldest step in flight."""
        flight = self._in_flight[0]
        assert flight.step == result.step, f"result of step {result.step}, expected {flight.step}"
        self._counts.steps += 1
        if flight.restored:
            self._budget.observe_restore(flight.restored_tokens, result.restored_ms)
        else:
            self._budget.observe(flight.prefill_tokens, result.elapsed_ms)
        self._planner.end_copies(flight)
        self._conclude(self._results.take(flight, result))
        self._planner.shrink(flight)
        self._in_flight.popleft()
        self._send_masks()
        self._stored.save(flight)
        self._requests.step_done(flight)
        self._cache_control.carry_out()

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
            store=self._stored.counts,
            leases=self._leases.counts(),
            pages_leased=self._cache.leases.num_pages,
            broken_leases=self._leases.num_broken,
            windows=[GroupPages(*each) for each in pages.windows],
            **asdict(self._counts),
        )

    def measure_load(self) -> Load:
        """The open work in seconds, as routers are told it."""
        return self._backlog.measure(self._counts.output_tokens)

    def _conclude(self, outcome: StepOutcome) -> None:
        for request in outcome.answered:
            self._requests.answer(request)
        for request in outcome.ended:
            self._requests.end(request)

    def _admit(self, now: float) -> None:
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
                self._backlog.count_reply()
                if request.namespace is not None:
                    self._hits.add(request.prompt_length, request.cached_tokens)

    def _choose_rows(self) -> tuple[list[Request], list[Request]]:
        """Returns requests that decode one token, and those that compute several: first forced tokens."""
        wanting = [request for request in self._requests.running if self._planner.wants_page(request)]
        ready = [request for request in wanting if self._retraction.secure_pages(request)]
        ready = [request for request in ready if request.phase is Phase.RUNNING]
        forced = [request for request in ready if request.allocation.has_forced]
        decoding = [request for request in ready if not request.allocation.has_forced]
        prompts = [request for request in self._requests.residents.values() if request.computes_prompt]
        return decoding, forced + self._choose_answered() + self._admission.in_order(prompts)

    def _choose_answered(self) -> list[Request]:
        """Answered requests with forced tokens to compute. They end early if pages run short."""
        residents = list(self._requests.residents.values())
        answered = [each for each in residents if each.phase is Phase.ANSWERED and each.allocation.prefilling]
        for request in answered:
            if not self._planner.ensure_pages(request):
                self._requests.end(request)
        return [request for request in answered if request.phase is Phase.ANSWERED]

    def _send_masks(self) -> None:
        """Sends the masks of the oldest step in flight: all tokens on which they depend are known now."""
        if not self._in_flight or self._in_flight[0].masks_sent:
            return
        flight = self._in_flight[0]
        flight.masks_sent = True
        if flight.host_masked:
            self._results.stall(flight)
            self._to_model.append(step_masks(flight, self._mask_words))
