"""How much each tenant has had, and who must let others go first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from .request import Request, Turn

OUTPUT_WEIGHT = 2  # a token that is decoded costs about two of a prompt's, as in the paper
MAX_AHEAD = 4096  # what two full steps compute: nobody waits much longer than that for the sake of a match
MAX_OVERTAKEN = 64  # who may go before a request by priority or match; more would be noticed as a stall
LOOK_AHEAD = 128  # requests whose match is looked up at a time, at some 10 µs each
SWEEP_FROM = 256  # tenants


class Bounds(NamedTuple):
    """How far the order by matches may go.

    Requests that overtake one, tokens that a tenant is ahead, requests that are compared.
    """

    overtaken: float = MAX_OVERTAKEN
    ahead: float = MAX_AHEAD
    look_ahead: int = LOOK_AHEAD


USUAL_BOUNDS = Bounds()


@dataclass(slots=True)
class _BusyPeriod:
    """One priority's tenants while some of its prompts wait or are computed.

    `contenders` are the tenants of those, each with its requests' priorities by their ids; `counters` the
    tokens served, also of tenants that rest. `level` is where a counter begins. `least` is the lowest
    contender's counter, None if that must be looked up.
    """

    counters: dict[str, float] = field(default_factory=dict)
    contenders: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    level: float = 0.0
    least: float | None = None
    sweep_at: int = SWEEP_FROM

    def lift(self, tenant: str, owed: Mapping[str, int], max_ahead: float) -> None:
        """A tenant that comes (back) from rest begins no lower than the others stand, and hardly higher."""
        served = [self.counters[other] - owed.get(other, 0) for other in self.contenders]
        if served:
            self.level = min(max(self.level, min(served)), max(served) + max_ahead)
        self._forget()
        self.counters[tenant] = max(self.counters.get(tenant, 0.0), self.level)

    def charge(self, tenant: str, tokens: float) -> None:
        self.counters[tenant] = self.counters.get(tenant, self.level) + tokens
        self.level += tokens / len(self.contenders)
        self.least = None

    def lowest(self) -> float:
        if self.least is None:
            self.least = min(self.counters[tenant] for tenant in self.contenders)
        return self.least

    def _forget(self) -> None:
        """Drops the counters of those at rest that would be lifted anyway."""
        if len(self.counters) < self.sweep_at:
            return
        self.counters = {
            tenant: counter
            for tenant, counter in self.counters.items()
            if tenant in self.contenders or counter > self.level
        }
        self.sweep_at = 2 * len(self.counters) + SWEEP_FROM


class Fairness:
    """Virtual token counters (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024).

    A tenant's counter grows by the prompt tokens that are computed for it (those in the tree are free) and
    by `OUTPUT_WEIGHT` for each token of output. A prompt is charged when it starts, so that a shorter one of
    another tenant goes before the rest of it. A tenant contends while a prompt of its waits or is computed.
    One that comes back from rest is lifted to the lowest contender, so nobody saves up. The lift
    rises by each contender's even share of what is served too, so that ever new tenants can't keep an old one
    waiting. As in "Locality-aware Fair Scheduling in LLM Serving" (Cao et al., 2025) the order by matches
    holds as long as a tenant is at most `ahead` tokens before the lowest contender; whoever is further
    ahead goes after the others. Each priority has counters of its own, for as long as anyone contends.

    With `own_priorities` one set of counters serves all priorities: a priority then orders the requests of
    its own tenant alone and takes nothing from other tenants.
    """

    def __init__(self, ahead: float, own_priorities: bool = False) -> None:
        self.own_priorities = own_priorities
        self._max_ahead = ahead
        self._periods: dict[int, _BusyPeriod] = {}

    def contend(self, request: Request, owed: Mapping[str, int]) -> None:
        """A prompt of the tenant waits or is computed from now on.

        `owed` are the tokens by tenant that were charged before they are computed.
        """
        period = self._periods.setdefault(self._level(request.priority), _BusyPeriod())
        if request.tenant not in period.contenders:
            period.lift(request.tenant, owed, self._max_ahead)
        period.contenders[request.tenant][request.id] = request.priority
        period.least = None

    def rest(self, request: Request) -> None:
        """The prompt is computed, or given up. Does no harm when called again."""
        level = self._level(request.priority)
        period = self._periods.get(level)
        if period is None or request.tenant not in period.contenders:
            return
        period.contenders[request.tenant].pop(request.id, None)
        if not period.contenders[request.tenant]:
            del period.contenders[request.tenant]
            period.least = None
        if not period.contenders:
            del self._periods[level]

    def charge(self, request: Request, tokens: float) -> None:
        """Counts what was served; less than zero takes back what was counted ahead."""
        period = self._periods.get(self._level(request.priority))
        if period is not None:
            period.charge(request.tenant, tokens)

    def counter(self, priority: int, tenant: str) -> float:
        """The tokens that a tenant was served, since it was lifted to the others."""
        period = self._periods.get(self._level(priority))
        return period.counters.get(tenant, period.level) if period is not None else 0.0

    def ahead(self, priority: int, tenant: str) -> float:
        """How many tokens a tenant is ahead of the lowest contender; 0 if that is within the bound."""
        period = self._periods.get(self._level(priority))
        if period is None:
            return 0.0
        lead = self.counter(priority, tenant) - period.lowest()
        return lead if lead > self._max_ahead else 0.0

    def turn(self, priority: int, tenant: str, in_order: bool) -> Turn:
        """Of a prompt, or of forced tokens; `in_order`: they are still put back for better priorities."""
        ahead = self.ahead(priority, tenant)
        if not self.own_priorities:
            return Turn(in_order, priority, ahead)
        return Turn(True, 0, ahead, in_order, priority - self._best_priority(tenant, priority))

    def _best_priority(self, tenant: str, priority: int) -> int:
        """Of the tenant's prompts that wait or are computed; `priority` if there are none."""
        period = self._periods.get(0)
        own = period.contenders.get(tenant, {}) if period is not None else {}
        return min(own.values(), default=priority)

    def compete(self, request: Request, other: Request) -> bool:
        """Whether fairness decides between the two, so that no priority does."""
        return self._level(request.priority) == self._level(other.priority)

    def by_choice(self, request: Request, other: Request) -> bool:
        """Whether the one goes before the other, with which it competes, for more than fairness."""
        lead = self.counter(other.priority, other.tenant) - self.counter(request.priority, request.tenant)
        return lead <= self._max_ahead

    def _level(self, priority: int) -> int:
        return 0 if self.own_priorities else priority
