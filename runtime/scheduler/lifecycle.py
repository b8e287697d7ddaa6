"""Every change of a request's phase, with what the request gets and gives back.

    | method | phase | gets | gives back |
    |---|---|---|---|
    | create | → COMPILING | place in the queue, adapter | |
    | wait | COMPILING → WAITING | | |
    | refuse | COMPILING → ENDED | | place, fetch, adapter |
    | start | WAITING → RUNNING | slot, pages, locks, automaton | place; fetch, if nothing is to restore |
    | retract | RUNNING → RETRACTING | | fetch |
    | answer | RUNNING → ANSWERED, or as `end` if no forced tokens are left to compute | | |
    | end | any → ENDED | | compilation, place and adapter (COMPILING, WAITING), fetch |
    | step_done | RETRACTING → WAITING | place | slot, pages, locks, automaton |
    | | ENDED → forgotten | | slot, pages, locks, automaton, adapter |

A request that has no step in flight goes through `step_done`'s transition at once. While its prompt waits or
is computed its tenant contends for a fair share.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection
from enum import Enum, auto

from ...radix_cache import PrefixCache, PrefixMatch
from ..messages import NO_STATE, EndLease, Generate, SlotEnd
from .adapters import AdapterRegistry
from .allocation import Allocation
from .fairness import Fairness
from .grammar_loader import GrammarLoader
from .lease_registry import LeaseRegistry
from .plan import MAX_STEPS_IN_FLIGHT, StepInFlight
from .queue_places import QueuePlaces
from .rank import is_background
from .refusals import Limits
from .request import Phase, Request
from .stored_pages import StoredPages
from .waiting_queue import WaitingQueue


class Start(Enum):
    """The outcome of an attempt to start a request."""

    STARTED = auto()
    NO_GRAMMAR_MEMORY = auto()
    NO_PAGES = auto()


class Lifecycle:
    """Owns the requests, each in exactly one container: compiling, the waiting queue, or with a slot."""

    def __init__(
        self,
        cache: PrefixCache,
        leases: LeaseRegistry,
        stored: StoredPages,
        grammars: GrammarLoader,
        fairness: Fairness,
        waiting: WaitingQueue,
        places: QueuePlaces,
        limits: Limits,
        adapters: AdapterRegistry,
    ) -> None:
        self.waiting = waiting
        self.residents: dict[int, Request] = {}  # slot -> request; an ENDED one stays until its last step
        self._compiling: dict[str, Request] = {}
        self._open: dict[str, Request] = {}  # requests by id whose reply is not complete
        self._cache = cache
        self._leases = leases
        self._stored = stored
        self._grammars = grammars
        self._adapters = adapters
        self._fairness = fairness
        self._places = places
        self._free_slots, self._max_sampled = deque(range(limits.slots)), limits.max_sampled
        self._arrivals = 0
        self._last_step_done = 0
        self._ended: list[SlotEnd] = []  # slots from whose replies others may draft

    def take_ended(self) -> list[SlotEnd]:
        """Returns the slots whose requests have ended since the last call, if others may draft from them."""
        ended, self._ended = self._ended, []
        return ended

    @property
    def open(self) -> Collection[Request]:
        """All requests whose reply is not complete."""
        return self._open.values()

    @property
    def running(self) -> list[Request]:
        return [request for request in self.residents.values() if request.phase is Phase.RUNNING]

    @property
    def streams_text(self) -> bool:
        """Whether a running request streams text that people may read as it comes."""
        residents = self.residents.values()
        return any(each.phase is Phase.RUNNING and each.is_streaming_text for each in residents)

    @property
    def runs_background(self) -> bool:
        """Whether a request in the background has a slot."""
        return any(is_background(request.priority) for request in self.residents.values())

    @property
    def has_free_slot(self) -> bool:
        return bool(self._free_slots)

    def has_grammar_memory(self, request: Request) -> bool:
        """Whether the request's automaton fits into the memory that running requests leave."""
        return self._grammars.fits(request.constraint)

    @property
    def idle(self) -> bool:
        return not self._open and not self.residents

    def find(self, request_id: str) -> Request | None:
        """Finds an open request."""
        return self._open.get(request_id)

    def create(self, message: Generate) -> Request:
        self._places.take(message.tenant)
        self._arrivals += 1
        request = Request.from_message(message, self._arrivals)
        request.adapter = self._adapters.acquire(message.adapter)
        self._open[request.id] = self._compiling[request.id] = request
        self._stored.look_up(request)
        return request

    def wait(self, request: Request) -> None:
        """Queues a request whose grammar is compiled, or that has no grammar."""
        del self._compiling[request.id]
        self._queue(request)

    def refuse(self, request: Request) -> None:
        """Ends a request that has no usable grammar."""
        del self._compiling[request.id], self._open[request.id]
        request.phase = Phase.ENDED
        self._places.give_back(request.tenant)
        self._stored.end(request)
        self._adapters.release(request.adapter)

    def start(self, request: Request, found: PrefixMatch) -> Start:
        """Starts the request, whose match in the tree is `found`, unless grammar memory or pages are short.

        It leaves running requests the pages that their steps in flight may need.
        """
        if not self._grammars.load(request.constraint):
            return Start.NO_GRAMMAR_MEMORY
        others = len(self.residents)
        reserve = others * self._cache.count_pages(MAX_STEPS_IN_FLIGHT * self._max_sampled)
        allocation = allocate(request, self._free_slots[0], self._cache, found, reserve)
        if allocation is None:
            self._grammars.unload(request.constraint)
            return Start.NO_PAGES
        self._free_slots.popleft()
        self.waiting.remove_started(request)
        self._places.give_back(request.tenant)
        request.phase = Phase.RUNNING
        request.held = allocation
        self.residents[allocation.slot] = request
        self._fairness.charge(request, request.uncomputed)
        if not allocation.restoring:
            self._stored.end(request)
        return Start.STARTED

    def retract(self, request: Request) -> None:
        """Stops the request to free its pages. It starts again later, with its output added to its prompt."""
        request.phase = Phase.RETRACTING
        self._stored.end(request)
        self._release_if_done(request)

    def answer(self, request: Request) -> None:
        """Marks the request's reply as complete. Final forced tokens are computed for the next turn."""
        if request.phase is not Phase.RUNNING or request.allocation.planned >= request.length - 1:
            self.end(request)
            return
        del self._open[request.id]
        request.phase = Phase.ANSWERED
        request.allocation.prefill_end = request.length - 1

    def end(self, request: Request) -> None:
        self._open.pop(request.id, None)
        if request.phase is Phase.COMPILING:
            del self._compiling[request.id]
            self._grammars.cancel(request.id)
            self._places.give_back(request.tenant)
        else:
            if request.phase is Phase.WAITING:
                self.waiting.remove(request)
                self._places.give_back(request.tenant)
            self._fairness.rest(request)
        self._stored.end(request)
        request.phase = Phase.ENDED
        if request.held is not None:
            self._release_if_done(request)
        else:
            self._adapters.release(request.adapter)

    def step_done(self, flight: StepInFlight) -> None:
        """Releases slots and pages that only the step `flight` still used."""
        self._last_step_done = flight.step
        for request in flight.requests:
            if request.held is not None:
                self._release_if_done(request)

    def _queue(self, request: Request, first: bool = False) -> None:
        """Queues the request, with `first` before all other requests of its tenant."""
        request.phase = Phase.WAITING
        owed: Counter[str] = Counter()
        for other in self.residents.values():
            if other.computes_prompt and self._fairness.compete(request, other):
                owed[other.tenant] += other.uncomputed
        self._fairness.contend(request, owed)
        self.waiting.add(request, first)
        self._stored.note_queued(request)

    def _release_if_done(self, request: Request) -> None:
        """Releases slot and pages, unless the request stays or a step in flight names it."""
        if request.stays or request.allocation.last_step > self._last_step_done:
            return
        self._release(request)
        if request.phase is Phase.RETRACTING:
            request.prompt_logprobs = []
            self._places.take(request.tenant)
            self._stored.look_up(request)
            self._queue(request, first=True)
        else:
            self._places.count_ended()
            self._adapters.release(request.adapter)

    def drop_lease_terms(self, order: EndLease) -> None:
        """Removes the lease terms that the order ends from the tenant's requests that have not ended."""
        for request in (*self._open.values(), *self.residents.values()):
            if (request.namespace, request.tenant) == (order.namespace, order.tenant):
                request.leases = [terms for terms in request.leases if not order.ends(terms.kind, terms.key)]

    def _release(self, request: Request) -> None:
        """Ends the allocation. The tree keeps the tokens whose KV exists. Others are not charged."""
        allocation = request.allocation
        if allocation.restored_place != NO_STATE:
            self._cache.drop_checkpoints(allocation.lock, allocation.restore_end, allocation.restore_end + 1)
        if allocation.faulty:
            self._cache.discard(allocation.lock)
            self._stored.discard(request)
        else:
            self._stored.release(request)
            has_run = allocation.last_step > 0
            existing = min(allocation.planned, request.length) if has_run else allocation.lock.matched
            tokens = request.slice(0, existing)
            self._cache.release(
                allocation.lock,
                tokens,
                generated=request.output_length,
                keeps_state=has_run and allocation.state_at == existing,
            )
            if request.phase is Phase.ENDED:
                self._leases.take(request, tokens)
                known = allocation.count_left(request.length)
                is_shared = request.max_drafts > 0 and request.namespace is not None
                if self._max_sampled > 1 and is_shared and known:
                    self._ended.append(SlotEnd(allocation.slot, known))
        self._fairness.charge(request, -request.uncomputed)
        allocation.restore_end = min(allocation.restore_end, allocation.planned)  # no step restored the rest
        request.charged = request.prompt_length - request.uncomputed
        self._grammars.unload(request.constraint)
        del self.residents[allocation.slot]
        self._free_slots.append(allocation.slot)
        request.held = None


def allocate(
    request: Request, slot: int, cache: PrefixCache, found: PrefixMatch, reserve: int
) -> Allocation | None:
    """Locks the matched prefix and allocates pages for the rest and one more token.

    Returns None if too few pages are available.

    found: the request's current match in the tree
    reserve: pages that stay available to running requests

    The match ends at a page boundary if pages run short, because the source of a partial copy would lock one
    more page, or if the page store has more of the prompt than the tree. In the latter case a match may end
    where the tree lacks a state or windowed pages: those at the end of the fetch are restored too.
    """
    fetched = request.stored.end * cache.page_size
    restoring = fetched > found.length
    has_only_end = request.stored.fetch is not None and request.stored.fetch.only_end is not None
    only_end = fetched if restoring and has_only_end else 0
    tokens = request.length + (1 if request.length < request.max_length else 0)
    if restoring or not cache.has_room(found, tokens, reserve):
        limit, only_pages = only_end or request.most_cached, only_end > 0
        prompt = request.freeze_tokens()
        found = cache.match(request.namespace, prompt, limit, whole_pages=True, only_pages=only_pages)
        if not cache.has_room(found, tokens, reserve, only_end):
            return None
    lock = cache.acquire(found, request.length, only_end)
    is_extended = cache.extend(lock, tokens, reserve)
    assert is_extended, "the cache has as many pages as it said"
    allocation = Allocation(
        slot, lock, prefill_end=request.length, planned=lock.matched, state_at=lock.matched
    )
    if found.checkpoint is not None:
        allocation.load_state = found.checkpoint.place
    if found.paged > found.length:
        allocation.stops.add(found.paged)
    if restoring:
        allocation.restore_end = fetched
    if only_end and lock.state is not None:
        place = cache.make_checkpoint(lock, fetched)
        assert place is not None, "each slot has a place for one checkpoint"
        allocation.restored_place = allocation.load_state = place
        allocation.saved_state, allocation.state_at = fetched, -1  # the live state is none of this prompt
    allocation.saved_pages = allocation.ready // cache.page_size
    if request.saved_from is not None:
        allocation.saved_pages = min(allocation.saved_pages, request.saved_from)
    return allocation
