"""The waiting requests and the order in which they are tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from .fairness import Bounds, Fairness
from .request import Request, Turn
from .shared_prefix import waits_for_prefix

Line = dict[str, Request]


class _Offer(NamedTuple):
    """The line of one tenant that competes with those of others."""

    tenant: str
    priority: int
    line: Line


@dataclass(slots=True)
class _PriorityClass:
    """The waiting requests of one priority by tenant, each tenant's oldest first.

    `passed` counts the starts of better priorities since one of this was started.
    """

    lines: dict[str, Line] = field(default_factory=dict)
    passed: int = 0


_Scope = dict[int, _PriorityClass]  # by priority


class WaitingQueue:
    """Waiting requests, of which those are tried first that

    1. have a priority that was passed over `Bounds.overtaken` times, once,
    2. have the best priority (the lowest number),
    3. belong to a tenant within `Bounds.ahead` tokens of the one that was served least; of the others, to
       the one that is the least ahead,
    4. were overtaken `Bounds.overtaken` times by others for their match, oldest first,
    5. have the longest match in the tree, then the oldest.

    The age bound (4) stands behind fairness (3), because a tenant could else age many requests at once
    and have them all go first. Where priorities order a tenant's own requests alone, each tenant offers
    the requests that 1 and 2 put first among its own, and 3 to 5 decide between those.
    """

    def __init__(self, fairness: Fairness, bounds: Bounds) -> None:
        self._fairness = fairness
        self._bounds = bounds
        self._scopes: dict[str, _Scope] = {}  # by tenant where priorities are each tenant's own, else one
        self._count = 0
        self._starts = 0

    def __len__(self) -> int:
        return self._count

    def add(self, request: Request) -> None:
        self._line(request)[request.id] = request
        self._count += 1

    def add_first(self, request: Request) -> None:
        """A retracted request keeps its place before all of its tenant's that came later."""
        line = {request.id: request, **self._line(request)}
        self._scopes[self._scope_of(request.tenant)][request.priority].lines[request.tenant] = line
        self._count += 1

    def remove(self, request: Request) -> None:
        name = self._scope_of(request.tenant)
        priority_class = self._scopes[name][request.priority]
        del priority_class.lines[request.tenant][request.id]
        self._count -= 1
        if not priority_class.lines[request.tenant]:
            del priority_class.lines[request.tenant]
        if not priority_class.lines:
            del self._scopes[name][request.priority]
        if not self._scopes[name]:
            del self._scopes[name]

    def turn(self, priority: int, tenant: str) -> Turn:
        """A request's place among the prompts that are computed: before whoever has a greater one."""
        in_order = self._is_in_order(self._scopes[self._scope_of(tenant)][priority])
        return self._fairness.turn(priority, tenant, in_order)

    def candidates(
        self, matched: Callable[[Request], int], has_room: Callable[[Turn], bool]
    ) -> Iterator[Request]:
        """Those that have room and wait for no pages, in their order, which `admit` may change meanwhile."""
        tried: set[str] = set()
        lengths: dict[str, int] = {}

        def match(request: Request) -> int:
            if request.id not in lengths:
                lengths[request.id] = matched(request)
            return lengths[request.id]

        while ranked := self._ranked(match, has_room, tried):
            starts = self._starts
            for request in ranked:
                tried.add(request.id)
                yield request
                if self._starts != starts:
                    break

    def admit(self, request: Request) -> None:
        """Takes it out; those that came before it and had to let it go first were overtaken."""
        self._starts += 1
        scope = self._scopes[self._scope_of(request.tenant)]
        for priority, other_class in scope.items():
            other_class.passed += priority > request.priority
        scope[request.priority].passed = 0
        for line in self._competing_lines(request):
            some = next(iter(line.values()))
            if self._fairness.by_choice(request, some):
                for other in line.values():
                    other.overtaken += other.arrival < request.arrival
        self.remove(request)

    def _line(self, request: Request) -> Line:
        scope = self._scopes.setdefault(self._scope_of(request.tenant), {})
        lines = scope.setdefault(request.priority, _PriorityClass()).lines
        return lines.setdefault(request.tenant, {})

    def _ranked(
        self, matched: Callable[[Request], int], has_room: Callable[[Turn], bool], tried: set[str]
    ) -> list[Request]:
        """The best of the first priority that has any."""

        def rank(request: Request) -> tuple[float, bool, int, int]:
            due = request.overtaken >= self._bounds.overtaken
            ahead = self._fairness.ahead(request.priority, request.tenant)
            return ahead, not due, 0 if due else -matched(request), request.arrival

        for offers in self._offers(tried):
            oldest = self._oldest(offers, has_room, tried)
            if oldest:
                return sorted(oldest, key=rank)
        return []

    def _offers(self, tried: set[str]) -> Iterator[list[_Offer]]:
        """Lines that compete, the best first."""
        if self._fairness.own_priorities:
            own = [self._own_offer(tenant, scope, tried) for tenant, scope in self._scopes.items()]
            yield [offer for offer in own if offer is not None]
            return
        for scope in self._scopes.values():
            for priority in _in_order(scope, self._is_in_order):
                lines = scope[priority].lines
                yield [_Offer(tenant, priority, line) for tenant, line in lines.items()]

    def _own_offer(self, tenant: str, scope: _Scope, tried: set[str]) -> _Offer | None:
        """The tenant's first line of which a request can start."""
        for priority in _in_order(scope, self._is_in_order):
            line = scope[priority].lines[tenant]
            if next(_can_start(line, tried), None) is not None:
                return _Offer(tenant, priority, line)
        return None

    def _oldest(
        self, offers: list[_Offer], has_room: Callable[[Turn], bool], tried: set[str]
    ) -> list[Request]:
        """`Bounds.look_ahead` requests or few more, as many of each tenant; who was served least first."""
        turns = {offer.tenant: self.turn(offer.priority, offer.tenant) for offer in offers}
        rooms = {turn: has_room(turn) for turn in set(turns.values())}
        offers = [offer for offer in offers if rooms[turns[offer.tenant]]]
        offers.sort(key=lambda offer: self._fairness.counter(offer.priority, offer.tenant))
        oldest: list[Request] = []
        for offer in offers:
            oldest += islice(_can_start(offer.line, tried), -(-self._bounds.look_ahead // len(offers)))
            if len(oldest) >= self._bounds.look_ahead:
                break
        return oldest

    def _competing_lines(self, request: Request) -> Iterator[Line]:
        """Those that a match may let the request go before."""
        own = self._scope_of(request.tenant)
        yield from self._scopes[own][request.priority].lines.values()
        for name, scope in self._scopes.items():
            if name != own:
                for other_class in scope.values():
                    yield from other_class.lines.values()

    def _scope_of(self, tenant: str) -> str:
        return tenant if self._fairness.own_priorities else ""

    def _is_in_order(self, priority_class: _PriorityClass) -> bool:
        return priority_class.passed < self._bounds.overtaken


def _in_order(scope: _Scope, is_in_order: Callable[[_PriorityClass], bool]) -> list[int]:
    """Priorities, those first that were passed over too often."""
    return sorted(scope, key=lambda priority: (is_in_order(scope[priority]), priority))


def _can_start(line: Line, tried: set[str]) -> Iterator[Request]:
    return (request for request in line.values() if request.id not in tried and not _waits_for_pages(request))


def _waits_for_pages(request: Request) -> bool:
    return request.awaits_fetch or waits_for_prefix(request)
