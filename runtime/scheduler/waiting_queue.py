"""The waiting requests, and the order in which they are tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from .fairness import Bounds, Fairness
from .rank import Rank, is_background
from .request import Request

Line = dict[str, Request]
"""the waiting requests of one tenant and priority by id, in the order in which they came"""


class _Offer(NamedTuple):
    """The line of one tenant that competes with the lines of others."""

    tenant: str
    priority: int
    line: Line


@dataclass(slots=True)
class _PriorityClass:
    """The waiting requests of one priority."""

    lines: dict[str, Line] = field(default_factory=dict)  # waiting requests of each tenant
    passed_over: int = 0  # number of starts of better priorities since a request of this class last started


_Scope = dict[int, _PriorityClass]  # classes by priority


class WaitingQueue:
    """Tries waiting requests in this order. Each rule decides between requests that tie by the earlier rules:

    1. a priority that was passed over `Bounds.overtaken` times, for one start
    2. the best priority (the lowest number)
    3. fairness: first tenants at most `Bounds.ahead` tokens ahead of the least served tenant, then the
       others, the least ahead first
    4. age: a request that `Bounds.overtaken` others overtook because of their matches, oldest first
    5. the longest match in the tree, then the oldest request

    Age (4) comes after fairness (3), because a tenant could otherwise age many requests at once and start
    them all before other tenants'. Where priorities order only a tenant's own requests, each tenant offers
    its own first requests by rules 1 and 2, and rules 3 to 5 decide between the offers. Requests in the
    background come after all others in any case; rule 1 does not apply to them.
    """

    def __init__(self, fairness: Fairness, bounds: Bounds) -> None:
        self._fairness = fairness
        self._bounds = bounds
        self._scopes: dict[str, _Scope] = {}  # one per tenant if each has its own priorities, else one
        self._count = 0
        self.to_compute = 0  # tokens of all prompts that routers expect to be computed
        self.most_output = 0  # tokens that all replies may have

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Request]:
        for scope in self._scopes.values():
            for priority_class in scope.values():
                for line in priority_class.lines.values():
                    yield from line.values()

    @property
    def has_foreground(self) -> bool:
        """Whether a request outside the background waits."""
        return any(not is_background(priority) for scope in self._scopes.values() for priority in scope)

    def add(self, request: Request, first: bool = False) -> None:
        """Adds a request. first: before the tenant's others of its priority, because it was retracted"""
        scope = self._scopes.setdefault(self._find_scope(request.tenant), {})
        lines = scope.setdefault(request.priority, _PriorityClass()).lines
        if first:
            lines[request.tenant] = {request.id: request, **lines.get(request.tenant, {})}
        else:
            lines.setdefault(request.tenant, {})[request.id] = request
        self._count += 1
        self.to_compute += request.uncached
        self.most_output += request.sampling.max_tokens

    def remove(self, request: Request) -> None:
        name = self._find_scope(request.tenant)
        priority_class = self._scopes[name][request.priority]
        del priority_class.lines[request.tenant][request.id]
        self._count -= 1
        self.to_compute -= request.uncached
        self.most_output -= request.sampling.max_tokens
        if not priority_class.lines[request.tenant]:
            del priority_class.lines[request.tenant]
        if not priority_class.lines:
            del self._scopes[name][request.priority]
        if not self._scopes[name]:
            del self._scopes[name]

    def rank(self, request: Request) -> Rank:
        """A waiting request's rank among the prompts that are computed."""
        return self._find_rank(request.priority, request.tenant)

    def find_candidates(
        self, matched: Callable[[Request], int], has_tokens: Callable[[Rank], bool], tried: Set[str]
    ) -> list[Request]:
        """The requests to try next, in order; empty if every request that may start was tried.

        matched: tokens of a request that need no computing
        has_tokens: whether the step has tokens left for a prompt of that rank
        tried: ids of requests to leave out

        The order depends on the tree and the running requests: it holds until the next start.
        """

        def order(request: Request) -> tuple[float, bool, int, int]:
            overdue = request.overtaken >= self._bounds.overtaken
            ahead = self._fairness.ahead(request.priority, request.tenant)
            return ahead, not overdue, 0 if overdue else -matched(request), request.arrival

        for offers in self._group_offers(tried):
            oldest = self._choose_oldest(offers, has_tokens, tried)
            if oldest:
                return sorted(oldest, key=order)
        return []

    def remove_started(self, request: Request) -> None:
        """Removes a request that starts, and counts that it overtook the requests that came before it."""
        scope = self._scopes[self._find_scope(request.tenant)]
        for priority, other_class in scope.items():
            other_class.passed_over += priority > request.priority and not is_background(priority)
        scope[request.priority].passed_over = 0
        for line in self._find_competing_lines(request):
            some = next(iter(line.values()))
            if self._fairness.is_within_bound(request, some):
                for other in line.values():
                    other.overtaken += other.arrival < request.arrival
        self.remove(request)

    def _find_rank(self, priority: int, tenant: str) -> Rank:
        priority_class = self._scopes[self._find_scope(tenant)][priority]
        return self._fairness.rank(priority, tenant, not self._is_overdue(priority_class))

    def _group_offers(self, tried: Set[str]) -> Iterator[list[_Offer]]:
        """Groups of tenants' queues that compete with each other, the best group first."""
        if self._fairness.own_priorities:
            own = [self._find_own_offer(tenant, scope, tried) for tenant, scope in self._scopes.items()]
            for background in (False, True):
                yield [
                    each for each in own if each is not None and is_background(each.priority) == background
                ]
            return
        for scope in self._scopes.values():
            for priority in self._sort_priorities(scope):
                lines = scope[priority].lines
                yield [_Offer(tenant, priority, line) for tenant, line in lines.items()]

    def _find_own_offer(self, tenant: str, scope: _Scope, tried: Set[str]) -> _Offer | None:
        """The tenant's best line that has a request to try."""
        for priority in self._sort_priorities(scope):
            line = scope[priority].lines[tenant]
            if next(_find_startable(line, tried), None) is not None:
                return _Offer(tenant, priority, line)
        return None

    def _choose_oldest(
        self, offers: list[_Offer], has_tokens: Callable[[Rank], bool], tried: Set[str]
    ) -> list[Request]:
        """About `Bounds.look_ahead` requests, the same number of each tenant, least served first."""
        ranks = {offer.tenant: self._find_rank(offer.priority, offer.tenant) for offer in offers}
        fits = {rank: has_tokens(rank) for rank in set(ranks.values())}
        offers = [offer for offer in offers if fits[ranks[offer.tenant]]]
        offers.sort(key=lambda offer: self._fairness.counter(offer.priority, offer.tenant))
        oldest: list[Request] = []
        for offer in offers:
            oldest += islice(_find_startable(offer.line, tried), -(-self._bounds.look_ahead // len(offers)))
            if len(oldest) >= self._bounds.look_ahead:
                break
        return oldest

    def _find_competing_lines(self, request: Request) -> Iterator[Line]:
        """The lines that the request may overtake because of its match: those of its priority in its scope,
        and those that other scopes offer beside these."""
        own = self._find_scope(request.tenant)
        yield from self._scopes[own][request.priority].lines.values()
        for name, scope in self._scopes.items():
            offer = self._find_own_offer(name, scope, frozenset()) if name != own else None
            if offer is not None and is_background(offer.priority) == is_background(request.priority):
                yield offer.line

    def _sort_priorities(self, scope: _Scope) -> list[int]:
        """Sorts priorities: overdue ones first, then from best to worst."""
        return sorted(scope, key=lambda priority: (not self._is_overdue(scope[priority]), priority))

    def _is_overdue(self, priority_class: _PriorityClass) -> bool:
        return priority_class.passed_over >= self._bounds.overtaken

    def _find_scope(self, tenant: str) -> str:
        return tenant if self._fairness.own_priorities else ""


def _find_startable(line: Line, tried: Set[str]) -> Iterator[Request]:
    """The requests of a line that wait for no other request's pages and for no answer of the page store."""
    for request in line.values():
        if request.id not in tried and not request.stored.awaits_answer and not request.waits_for_prefix:
            yield request
