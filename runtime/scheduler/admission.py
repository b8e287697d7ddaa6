"""Decides which waiting requests start, and in which order prompts are computed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from ...radix_cache import PrefixCache, PrefixMatch, common_tokens
from .constraint import AutomatonConstraint
from .fairness import Bounds, Fairness
from .lifecycle import Lifecycle, Start
from .rank import InheritedRank, Rank, is_background
from .request import AwaitedPrefix, Phase, Request
from .stored_pages import StoredPages


@dataclass(slots=True)
class Shortage:
    """The resources that kept requests outside the background from starting in the next step."""

    slots: int = 0  # requests whose automata fit but for which no slot was free
    pages: bool = False
    grammar_memory: bool = False

    def __bool__(self) -> bool:
        return bool(self.slots) or self.pages or self.grammar_memory


class _Attempt(Enum):
    STARTED = auto()
    WAITS = auto()
    BLOCKS = auto()  # no other request may start before it
    LACKS_SLOT = auto()  # its automaton fits; pages are not tried


@dataclass(slots=True)
class _Round:
    """The tokens that are left for one step, and the requests that were tried for it so far."""

    tokens: int  # prompt tokens that the step computes
    restored_tokens: int  # tokens that the step may restore from the page store
    busy: list[Request]  # requests with a slot that compute more than one token
    tried: set[str] = field(default_factory=set)
    matches: dict[str, int] = field(default_factory=dict)  # matched tokens by request id
    without_grammar: int = 0  # requests that could not start for lack of grammar memory


class Admission:
    """Starts a request when the next step would compute some of its prompt, and not before.

    A waiting request holds no pages, may still be overtaken, and may find more in the tree later. Prompts of
    running requests are computed one after the other in the order of their ranks. A prompt that was preempted
    `Bounds.overtaken` times is not preempted again.
    """

    def __init__(
        self,
        cache: PrefixCache,
        stored: StoredPages,
        requests: Lifecycle,
        fairness: Fairness,
        bounds: Bounds,
    ) -> None:
        self._cache = cache
        self._stored = stored
        self._requests = requests
        self._waiting = requests.waiting
        self._fairness = fairness
        self._bounds = bounds
        self.shortage = Shortage()
        """shortages that the last call of `admit` met"""

    def admit(self, tokens: int, restored_tokens: int) -> list[Request]:
        """Starts requests until the step's prompt tokens are used up; returns them in that order."""
        self.shortage = Shortage()
        if not self._waiting:
            return []
        busy = [request for request in self._requests.residents.values() if not request.only_decodes]
        round_ = _Round(tokens, restored_tokens, busy)
        started = []
        while self._may_try and (request := self._start_next(round_)) is not None:
            if request.phase is Phase.RUNNING:
                round_.busy.append(request)
                started.append(request)
        return started

    @property
    def _may_try(self) -> bool:
        """Whether there is a free slot, or a request in the background has one that others may need."""
        if self._requests.has_free_slot:
            return True
        return self._waiting.has_foreground and self._requests.runs_background

    def fetch_ahead(self) -> None:
        """Fetches stored pages for waiting requests, best rank first."""

        def order(request: Request) -> tuple[Rank, int]:
            return self._waiting.rank(request), request.arrival

        self._stored.fetch_ahead(order)

    def in_order(self, prompts: Iterable[Request]) -> list[Request]:
        """Running requests in the order in which their prompts are computed."""
        return sorted(prompts, key=self._rank)

    def _start_next(self, round_: _Round) -> Request | None:
        """Starts the first request that can start; None if none can. A request that lacks a slot is
        returned without a start."""

        def count_ready(request: Request) -> int:
            if request.id not in round_.matches:
                round_.matches[request.id] = self._count_ready(request, self._match(request))
            return round_.matches[request.id]

        def has_tokens(rank: Rank) -> bool:
            return self._tokens_before(rank, round_.busy) < round_.tokens

        while candidates := self._waiting.find_candidates(count_ready, has_tokens, round_.tried):
            for request in candidates:
                round_.tried.add(request.id)
                attempt = self._try_start(request, round_)
                if attempt is _Attempt.LACKS_SLOT:
                    self.shortage.slots += 1
                    round_.tokens -= request.length - count_ready(request)
                if attempt in (_Attempt.STARTED, _Attempt.LACKS_SLOT):
                    return request
                if attempt is _Attempt.BLOCKS:
                    return None
        return None

    def _try_start(self, request: Request, round_: _Round) -> _Attempt:
        found = self._match(request)
        if self._awaits_prefix(request, found, round_.busy):
            self._inherit_rank(request)
            return _Attempt.WAITS
        if self._stored.awaits(request, found, busy=bool(self._requests.residents)):
            return _Attempt.WAITS
        rank = self._waiting.rank(request)
        in_background = is_background(request.priority)
        if (
            in_background
            and self.shortage.grammar_memory
            and isinstance(request.constraint, AutomatonConstraint)
        ):
            return _Attempt.WAITS
        restores = request.stored.fetch is not None
        if restores and self._restored_before(rank, round_.busy) >= round_.restored_tokens:
            return _Attempt.WAITS
        if not self._requests.has_free_slot:
            if in_background:
                return _Attempt.BLOCKS
            if not self._requests.has_grammar_memory(request):
                return self._without_grammar_memory(request, round_)
            return _Attempt.LACKS_SLOT
        preempted = [each for each in round_.busy if each.computes_prompt and self._rank(each) > rank]
        match self._requests.start(request, found):
            case Start.NO_PAGES:
                self.shortage.pages = not in_background
                return _Attempt.BLOCKS
            case Start.NO_GRAMMAR_MEMORY:
                return self._without_grammar_memory(request, round_)
            case Start.STARTED:
                request.allocation.preemptible = rank.is_preemptible
                self._count_preemption(preempted)
                return _Attempt.STARTED

    def _without_grammar_memory(self, request: Request, round_: _Round) -> _Attempt:
        """Lets other requests start before this one, which lacks grammar memory, but not too many."""
        self.shortage.grammar_memory |= not is_background(request.priority)
        round_.without_grammar += 1
        overdue = request.overtaken >= self._bounds.overtaken
        too_many = round_.without_grammar >= self._bounds.look_ahead
        return _Attempt.BLOCKS if overdue or too_many else _Attempt.WAITS

    def _match(self, request: Request) -> PrefixMatch:
        return self._cache.match(request.namespace, request.freeze_tokens(), request.most_cached)

    def _count_ready(self, request: Request, found: PrefixMatch) -> int:
        """Number of the request's tokens that the tree or the page store has."""
        return max(request.stored.end * self._cache.page_size, found.length)

    def _awaits_prefix(self, request: Request, found: PrefixMatch, busy: Iterable[Request]) -> bool:
        if not request.most_cached or request.namespace is None or not self._cache.enabled:
            return False
        ready = self._count_ready(request, found)
        return find_awaited_prefix(request, ready, busy, self._cache.page_size)

    def _inherit_rank(self, request: Request) -> None:
        """A prefill inherits the rank of the requests that wait for its pages."""
        if request.awaits is None:
            return
        rank = self._waiting.rank(request)
        if rank < self._own_rank(request.awaits.by):
            request.awaits.allocation.inherit(InheritedRank(rank, request.awaits.tokens))

    def _own_rank(self, request: Request) -> Rank:
        return self._fairness.rank(request.priority, request.tenant, request.allocation.preemptible)

    def _rank(self, request: Request) -> Rank:
        """The best of a running request's own and inherited ranks."""
        allocation = request.allocation
        inherited = (each.rank for each in allocation.inherited if allocation.planned < each.tokens)
        return min([self._own_rank(request), *inherited])

    def _tokens_before(self, rank: Rank, busy: Iterable[Request]) -> int:
        """Number of tokens of prompts and forced runs that are computed before a request of that rank."""
        return sum(
            request.allocation.prefill_end - request.allocation.ready
            for request in busy
            if request.computes_forced or (request.computes_prompt and self._rank(request) <= rank)
        )

    def _restored_before(self, rank: Rank, busy: Iterable[Request]) -> int:
        """Number of tokens that are restored before those of a waiting request of that rank."""
        before = (each for each in busy if each.computes_prompt and self._rank(each) <= rank)
        return sum(each.allocation.to_restore for each in before)

    def _count_preemption(self, preempted: Iterable[Request]) -> None:
        for request in preempted:
            request.allocation.preempted += 1
            overdue = request.allocation.preempted >= self._bounds.overtaken
            if overdue and not is_background(request.priority):
                request.allocation.preemptible = False


def find_awaited_prefix(request: Request, matched: int, residents: Iterable[Request], page_size: int) -> bool:
    """Whether the tree will soon hold more of the prompt than the `matched` tokens that it has now.

    Another request is computing or restoring that prefix, or has ended and enters its tokens into the tree
    when its last step is done.
    """
    request.awaits = None
    tokens = request.freeze_tokens()
    for other in residents:
        if other.namespace != request.namespace:
            continue
        allocation = other.allocation
        if other.phase is not Phase.RUNNING:
            common = common_tokens(tokens, other.slice(0, allocation.planned))
            if min(common, request.most_cached) > matched:
                return True
        elif allocation.prefilling:
            common = common_tokens(tokens, other.slice(0, allocation.prefill_end))
            whole_pages = min(common, request.most_cached) // page_size * page_size
            coming = whole_pages if whole_pages > matched else min(whole_pages, allocation.restore_end)
            is_too_short = allocation.restores_only_end and coming < allocation.restore_end
            if allocation.planned < coming and not is_too_short:
                allocation.stops.add(coming)
                request.awaits = AwaitedPrefix(other, allocation, coming)
                return True
    return False
