"""Retracts running requests whose slots, pages or grammar memory other requests need."""

from __future__ import annotations

from collections.abc import Sequence

from .admission import Shortage
from .constraint import AutomatonConstraint
from .counts import Counts
from .fairness import Fairness
from .lifecycle import Lifecycle
from .plan import StepPlanner
from .rank import is_background
from .request import Phase, Request


class Retraction:
    """A retracted request gives back what it holds when its steps in flight are done."""

    def __init__(self, requests: Lifecycle, planner: StepPlanner, fairness: Fairness, counts: Counts) -> None:
        self._requests = requests
        self._planner = planner
        self._fairness = fairness
        self._counts = counts

    def make_way(self, shortage: Shortage) -> bool:
        """Retracts requests in the background for others that cannot start.

        Returns True if one of the retracted requests gave back its slot and pages at once. The others do so
        when the steps in flight are done.
        """
        released = False
        for request in self._in_the_way(shortage):
            self._retract(request)
            released |= request.phase is not Phase.RETRACTING
        return released

    def secure_pages(self, request: Request) -> bool:
        """Allocates pages for the next tokens, and retracts requests until there are enough.

        Returns False if the request must skip this step: steps in flight still use pages that retracted or
        ended requests give back.
        """
        while request.phase is Phase.RUNNING and not self._planner.ensure_pages(request):
            if self._num_leaving:
                return False
            own_priorities = self._fairness.own_priorities
            self._retract(to_retract(self._requests.running, own_priorities=own_priorities))
        return request.phase is Phase.RUNNING

    def _in_the_way(self, shortage: Shortage) -> Sequence[Request]:
        """The requests in the background that should be retracted, the youngest first."""
        if not shortage:
            return ()
        running = self._requests.running
        background = sorted(_in_background(running), key=lambda request: -request.arrival)
        if shortage.slots:
            return background[: max(0, shortage.slots - self._num_leaving)]
        if self._num_leaving:
            return ()
        if shortage.grammar_memory:
            background = _only_users_of_automata(background, running)
        return background[:1]

    @property
    def _num_leaving(self) -> int:
        """Number of requests that give back what they hold when the steps in flight are done."""
        return sum(not each.stays for each in self._requests.residents.values())

    def _retract(self, request: Request) -> None:
        self._counts.retractions += 1
        self._requests.retract(request)


def to_retract(running: Sequence[Request], *, own_priorities: bool) -> Request:
    """The youngest request of the worst priority. If priorities are each tenant's own, considers only the
    tenant of the youngest request.

    Requests in the background come first in any case.
    """
    if background := _in_background(running):
        running = background
    elif own_priorities:
        youngest = max(running, key=lambda request: request.arrival)
        running = [request for request in running if request.tenant == youngest.tenant]
    return max(running, key=lambda request: (request.priority, request.arrival))


def _in_background(running: Sequence[Request]) -> list[Request]:
    return [request for request in running if is_background(request.priority)]


def _only_users_of_automata(background: Sequence[Request], running: Sequence[Request]) -> list[Request]:
    """The requests whose automata no request outside the background uses."""
    used = {_automaton(request) for request in running if not is_background(request.priority)}
    return [request for request in background if _automaton(request) not in {None, *used}]


def _automaton(request: Request) -> str | None:
    """The key of the request's automaton on the device."""
    constraint = request.constraint
    return constraint.automaton.key if isinstance(constraint, AutomatonConstraint) else None
