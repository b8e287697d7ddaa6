"""Finds the fewest replicas that keep TTFT and ITL below their limits."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from .figures import Figures


class Objectives(msgspec.Struct, frozen=True, kw_only=True):
    """The longest 99th percentiles; None: no limit."""

    ttft_p99_s: float | None = None
    itl_p99_s: float | None = None

    def are_met(self, figures: Figures) -> bool | None:
        """None if there are none."""
        found = ((self.ttft_p99_s, figures.ttft_s.p99), (self.itl_p99_s, figures.itl_s.p99))
        met = [value <= limit for limit, value in found if limit is not None]
        return all(met) if met else None


class Trial(msgspec.Struct, frozen=True):
    replicas: int
    figures: Figures
    is_enough: bool | None
    """None: no objective was given"""


def find_fewest(attempt: Callable[[int], Trial], max_replicas: int) -> Iterator[Trial]:
    """Yields the trials of a search for the fewest replicas: twice as many until they are enough, then
    between the last two, as if more replicas were never worse. If no trial is enough, the last one has
    `max_replicas`."""
    too_few, replicas = 0, 1
    while True:
        yield (trial := attempt(replicas))
        if trial.is_enough:
            break
        if replicas == max_replicas:
            return
        too_few, replicas = replicas, min(2 * replicas, max_replicas)
    enough = replicas
    while enough - too_few > 1:
        yield (trial := attempt((too_few + enough) // 2))
        if trial.is_enough:
            enough = trial.replicas
        else:
            too_few = trial.replicas
