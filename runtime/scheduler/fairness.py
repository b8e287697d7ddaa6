"""How many tokens each tenant was served, and which tenants must wait for others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from .rank import Rank, is_background
from .request import Request

OUTPUT_WEIGHT = 2  # cost of a decoded token in prompt tokens, as in the paper cited below
MAX_AHEAD = 4096  # tokens of two full steps, so that a longer match delays other tenants little
MAX_OVERTAKEN = 64  # requests that may overtake a request; more would be noticed as a stall
LOOK_AHEAD = 128  # requests whose match is looked up at a time, at some 10 µs each
SWEEP_FROM = 256  # number of counters from which those of tenants at rest are dropped


class Bounds(NamedTuple):
    """Limits on how far requests may overtake others."""

    overtaken: float = MAX_OVERTAKEN  # requests that may start before a request because of priority or match
    ahead: float = MAX_AHEAD  # tokens that a tenant may be ahead of the least served tenant
    look_ahead: int = LOOK_AHEAD  # waiting requests whose matches are compared


USUAL_BOUNDS = Bounds()


@dataclass(slots=True)
class _BusyPeriod:
    """The tenants of one priority while some prompts of that priority wait or are computed."""

    counters: dict[str, float] = field(default_factory=dict)  # tokens served to each tenant, even at rest
    contenders: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    """for each tenant, the priorities of its waiting or computed prompts by request id"""
    level: float = 0.0  # tokens at which the counter of a new tenant begins
    least: float | None = None  # the lowest contender's counter; None: not known
    sweep_at: int = SWEEP_FROM

    def raise_to_level(self, tenant: str, owed: Mapping[str, int], max_ahead: float) -> None:
        """Raises the counter of a tenant that was at rest to the level or the lowest contender's."""
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
        """Drops the counters of tenants at rest that would be raised to the level anyway."""
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

    A tenant's counter grows by its computed prompt tokens (tokens found in the tree are free) and by
    `OUTPUT_WEIGHT` for each token of output. A prompt is charged when it starts, so a shorter prompt of
    another tenant goes before the rest of it. A tenant contends while one of its prompts waits or is
    computed, and rests otherwise. After a rest its counter is raised to the lowest contender's, so a tenant
    gains nothing by resting. That level also rises by each contender's even share of the served tokens, so a
    stream of new tenants cannot keep an old one waiting. As in "Locality-aware Fair Scheduling in LLM
    Serving" (Cao et al., 2025) the order by matches holds while a tenant is at most `ahead` tokens ahead of
    the lowest contender; tenants further ahead wait. Each priority has its own counters while any tenant
    contends.

    With `own_priorities` one set of counters serves all priorities: a priority then orders only the requests
    of its tenant and takes nothing from other tenants. Requests in the background have counters of their own
    and come after those of all tenants.
    """

    def __init__(self, ahead: float, own_priorities: bool = False) -> None:
        self.own_priorities = own_priorities
        self._max_ahead = ahead
        self._periods: dict[int, _BusyPeriod] = {}

    def contend(self, request: Request, owed: Mapping[str, int]) -> None:
        """Notes that a prompt of the tenant waits or is computed from now on.

        owed: for each tenant, tokens that were charged and are still to be computed
        """
        period = self._periods.setdefault(self._level(request.priority), _BusyPeriod())
        if request.tenant not in period.contenders:
            period.raise_to_level(request.tenant, owed, self._max_ahead)
        period.contenders[request.tenant][request.id] = request.priority
        period.least = None

    def rest(self, request: Request) -> None:
        """Notes that the prompt is computed, or that its request has ended. Further calls have no effect."""
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
        """Counts served tokens; a negative number cancels an earlier charge."""
        period = self._periods.get(self._level(request.priority))
        if period is not None:
            period.charge(request.tenant, tokens)

    def counter(self, priority: int, tenant: str) -> float:
        """Number of tokens served to a tenant, on the scale that all tenants share."""
        period = self._periods.get(self._level(priority))
        return period.counters.get(tenant, period.level) if period is not None else 0.0

    def ahead(self, priority: int, tenant: str) -> float:
        """By how many tokens a tenant is ahead of the lowest contender; 0 if within the bound."""
        period = self._periods.get(self._level(priority))
        if period is None:
            return 0.0
        lead = self.counter(priority, tenant) - period.lowest()
        return lead if lead > self._max_ahead else 0.0

    def rank(self, priority: int, tenant: str, preemptible: bool) -> Rank:
        """The rank of a prompt. preemptible: whether prompts of better priorities may start before it"""
        ahead = self.ahead(priority, tenant)
        if not self.own_priorities or is_background(priority):
            return Rank(preemptible, priority, ahead)
        return Rank(True, 0, ahead, preemptible, priority - self._best_priority(tenant, priority))

    def _best_priority(self, tenant: str, priority: int) -> int:
        """The best priority of the tenant's prompts that wait or are being computed, or else `priority`."""
        period = self._periods.get(0)
        own = period.contenders.get(tenant, {}) if period is not None else {}
        return min(own.values(), default=priority)

    def compete(self, request: Request, other: Request) -> bool:
        """Whether fairness decides between the two rather than their priorities."""
        return self._level(request.priority) == self._level(other.priority)

    def is_within_bound(self, request: Request, other: Request) -> bool:
        """Whether fairness allows `request` to start before `other` because of its match."""
        lead = self.counter(other.priority, other.tenant) - self.counter(request.priority, request.tenant)
        return lead <= self._max_ahead

    def _level(self, priority: int) -> int:
        return 0 if self.own_priorities and not is_background(priority) else priority
