"""Finds the fewest replicas that keep TTFT and ITL below their limits: of one kind, or with roles."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

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

    def needs_prefill(self, figures: Figures) -> bool:
        """Whether a layout that does not meet them needs more prefill replicas, rather than more decode
        replicas: most of the time to the first token passes before a prompt's pages have come."""
        if self.itl_p99_s is not None and figures.itl_s.p99 > self.itl_p99_s:
            return False
        assert figures.prefill_s is not None, "prefill is apart from decode"
        return figures.prefill_s.p99 > figures.ttft_s.p99 / 2


class Trial(msgspec.Struct, frozen=True):
    replicas: int
    figures: Figures
    is_enough: bool | None
    """None: no objective was given"""
    prefill: int = 0
    """how many of the replicas only compute prompts, while the others only decode; 0: all do both"""


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
    yield from _bisect(attempt, too_few, replicas)


def find_fewest_apart(
    attempt: Callable[[int, int], Trial], objectives: Objectives, max_replicas: int
) -> Iterator[Trial]:
    """Yields the trials of a search for the fewest replicas with prefill apart from decode: twice as many of
    the role that is short until they are enough, then fewer of each role. Trials may have more than
    `max_replicas`; the search ends when this number can't be enough.

    attempt: tries a number of prefill replicas and one of decode replicas
    """
    prefill = decode = 1
    while _find_floor(prefill) + _find_floor(decode) <= max_replicas:
        yield (trial := attempt(prefill, decode))
        if trial.is_enough:
            break
        if objectives.needs_prefill(trial.figures):
            prefill *= 2
        else:
            decode *= 2
    else:
        return
    fewest = yield from _bisect(lambda count: attempt(count, decode), _find_floor(prefill) - 1, prefill)
    yield from _bisect(lambda count: attempt(fewest, count), _find_floor(decode) - 1, decode)


def _find_floor(count: int) -> int:
    """The fewest replicas of a role that may be enough, if half of `count` were too few."""
    return count // 2 + 1 if count > 1 else 1


def _bisect(attempt: Callable[[int], Trial], too_few: int, enough: int) -> Generator[Trial, None, int]:
    """Yields the trials of a search between two numbers. Returns the lowest one that is enough."""
    while enough - too_few > 1:
        count = (too_few + enough) // 2
        yield (trial := attempt(count))
        if trial.is_enough:
            enough = count
        else:
            too_few = count
    return enough
