"""The order in which prompts are computed."""

from __future__ import annotations

from typing import NamedTuple

from ..messages import BACKGROUND_PRIORITY


def is_background(priority: int) -> bool:
    """Whether requests of this priority always start after all others."""
    return priority >= BACKGROUND_PRIORITY


class Rank(NamedTuple):
    """Sort key of prompts, lowest first: (may be preempted, priority, tokens ahead).

    Where priorities order only a tenant's own requests, the first two are (True, 0) for every prompt outside
    the background, and the last two order the prompts of one tenant.
    """

    preemptible: bool
    priority: int
    ahead: float  # tokens by which the tenant exceeds fairness's bound on its lead
    own_preemptible: bool = True
    own_priority: int = 0  # priority minus the best priority among the tenant's prompts

    @property
    def is_preemptible(self) -> bool:
        return self.preemptible and self.own_preemptible


class InheritedRank(NamedTuple):
    """The rank of a request that waits for the first `tokens` of another request's prompt."""

    rank: Rank
    tokens: int
