"""The waiting requests and the order in which they are tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from .fairness import Bounds, Fairness
from .request import Request, Turn
from .shared_prefix import waits_for_prefix

Line = dict[str, Request]


@dataclass(slots=True)
class _PriorityClass:
    """The waiting requests of one priority by tenant, each tenant's oldest first.

    `passed` counts the starts of better priorities since one of this was started.
    """

    lines: dict[str, Line] = field(default_factory=dict)
    passed: int = 0


class WaitingQueue:
    """Waiting requests, of which those are tried first that

    1. have a priority that was passed over `Bounds.overtaken` times, once,
    2. have the best priority (the lowest number),
    3. belong to a tenant within `Bounds.ahead` tokens of the one that was served least; of the others, to
       the one that is the least ahead,
    4. were overtaken `Bounds.overtaken` times by others for their match, oldest first,
    5. have the longest match in the tree, then the oldest.

    The age bound (4) stands behind fairness (3), because a tenant could else age many requests at once
    and have them all go first.
    """

    def __init__(self, fairness: Fairness, bounds: Bounds) -> None:
        self._fairness = fairness
        self._bounds = bounds
        self._classes: dict[int, _PriorityClass] = {}
        self._count = 0
        self._starts = 0

    def __len__(self) -> int:
        return self._count

    def add(self, request: Request) -> None:
        self._line(request)[request.id] = request
        self._count += 1

    def add_first(self, request: Request) -> None:
        """A retracted request keeps its place before all of its tenant's that came later."""
        self._classes[request.priority].lines[request.tenant] = {request.id: request, **self._line(request)}
        self._count += 1

    def remove(self, request: Request) -> None:
        priority_class = self._classes[request.priority]
        del priority_class.lines[request.tenant][request.id]
        self._count -= 1
        if not priority_class.lines[request.tenant]:
            del priority_class.lines[request.tenant]
        if not priority_class.lines:
            del self._classes[request.priority]

    def turn(self, priority: int, tenant: str) -> Turn:
        """A request's place among the prompts that are computed: before whoever has a greater one."""
        in_order = self._classes[priority].passed < self._bounds.overtaken
        return in_order, priority, self._fairness.ahead(priority, tenant)

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
        for priority, other_class in self._classes.items():
            other_class.passed += priority > request.priority
        own = self._classes[request.priority]
        own.passed = 0
        for line in own.lines.values():
            some = next(iter(line.values()))
            if self._fairness.by_choice(request, some):
                for other in line.values():
                    other.overtaken += other.arrival < request.arrival
        self.remove(request)

    def _line(self, request: Request) -> Line:
        lines = self._classes.setdefault(request.priority, _PriorityClass()).lines
        return lines.setdefault(request.tenant, {})

    def _ranked(
        self, matched: Callable[[Request], int], has_room: Callable[[Turn], bool], tried: set[str]
    ) -> list[Request]:
        """The best of the first priority that has any."""

        def rank(request: Request) -> tuple[float, bool, int, int]:
            due = request.overtaken >= self._bounds.overtaken
            ahead = self._fairness.ahead(request.priority, request.tenant)
            return ahead, not due, 0 if due else -matched(request), request.arrival

        for priority in sorted(self._classes, key=self._class_order):
            oldest = self._oldest(priority, has_room, tried)
            if oldest:
                return sorted(oldest, key=rank)
        return []

    def _class_order(self, priority: int) -> tuple[bool, int]:
        return self._classes[priority].passed < self._bounds.overtaken, priority

    def _oldest(self, priority: int, has_room: Callable[[Turn], bool], tried: set[str]) -> list[Request]:
        """`Bounds.look_ahead` requests or few more, as many of each tenant; who was served least first."""
        lines = self._classes[priority].lines
        turns = {tenant: self.turn(priority, tenant) for tenant in lines}
        rooms = {turn: has_room(turn) for turn in set(turns.values())}
        tenants = [tenant for tenant in lines if rooms[turns[tenant]]]
        tenants.sort(key=lambda tenant: self._fairness.counter(priority, tenant))
        oldest: list[Request] = []
        for tenant in tenants:
            can_start = (r for r in lines[tenant].values() if r.id not in tried and not _waits_for_pages(r))
            oldest += islice(can_start, -(-self._bounds.look_ahead // len(tenants)))
            if len(oldest) >= self._bounds.look_ahead:
                break
        return oldest


def _waits_for_pages(request: Request) -> bool:
    return request.awaits_fetch or waits_for_prefix(request)
