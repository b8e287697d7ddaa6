"""The chance of reuse by kind and age, learned from counts, and the Gittins index that follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import exp2, floor, log2
from operator import mul
from typing import NamedTuple

ASSUMED = 0.1  # prior chance of reuse in each band of age; equal chances for all bands mean LRU
MAX_CHANCE = 0.9  # upper bound of a learned chance of reuse
NEAR = 0.6  # weight that an observation has in a neighbouring band of age, relative to its own band
NODES = 16  # number of observed nodes at which the evidence outweighs the prior
OWN = 1 / 4  # weight of the prior of a factor that belongs to one kind, relative to a factor of a trait
COMPARED_EVERY = 16  # minimal number of updates of kinds between two updates of the traits' factors
STEPS = 4  # steps per doubling to which an index is rounded: smaller differences count as equal
MAX_SCALE = 1e60


class Traits(NamedTuple):
    """The features that distinguish kinds of nodes, each on a coarse scale."""

    hits: int
    ancestry: int
    length: int
    output: int


class Kind:
    """Nodes of equal traits: how many bytes reached each band of age, and how many were used in it."""

    __slots__ = ("nodes", "rates", "seen", "traits", "used")

    def __init__(self, traits: Traits, bands: int) -> None:
        self.traits = traits
        self.seen = [0.0] * bands
        self.used = [0.0] * bands
        self.nodes = 0.0  # weighted number of nodes that reached the first band
        self.rates: list[float] = []  # Gittins index in each band of age

    def count_rested(self, size: float, scale: float) -> None:
        """Counts a node of `size` bytes that was unlocked and so enters the first band."""
        self.seen[0] += size * scale
        self.nodes += scale

    def shrink(self, times: float) -> None:
        self.seen = [count / times for count in self.seen]
        self.used = [count / times for count in self.used]
        self.nodes /= times


class ReuseTable:
    """Learns the index of each kind, one kind at a time.

    The prior chances of a kind are those of all kinds together, times a factor for each of its traits (how
    much more often nodes with that trait were used than expected). The kind's own observations near an age
    change its chances there by one more factor. Old counts decay: instead of shrinking them, new counts are
    multiplied by a growing `scale`.
    """

    def __init__(self, widths: Sequence[float], weight: float, half_life: float) -> None:
        """
        widths: accesses in each band of age
        weight: observed bytes that outweigh the prior, at least
        half_life: accesses after which a count weighs half
        """
        self.scale = 1.0
        self._widths = widths
        self._weight = weight
        self._half_life = half_life
        self._origin = 0  # the time, in accesses, at which `scale` was 1
        self._kinds: dict[Traits, Kind] = {}
        self._turn: Iterator[Kind] = iter(())
        self._until_compared = 0
        self._base = [ASSUMED] * len(widths)
        self._factors: list[dict[int, float]] = [{} for _ in Traits._fields]

    @property
    def num_kinds(self) -> int:
        return max(len(self._kinds), 1)

    def kind(self, traits: Traits) -> Kind:
        kind = self._kinds.get(traits)
        if kind is None:
            kind = self._kinds[traits] = Kind(traits, len(self._widths))
            self._update(kind)
        return kind

    def advance(self, now: int) -> None:
        self.scale = 2.0 ** ((now - self._origin) / self._half_life)
        if self.scale > MAX_SCALE:
            largest, self._origin, self.scale = self.scale, now, 1.0
            for kind in self._kinds.values():
                kind.shrink(largest)  # the index depends only on ratios

    def update_next(self) -> Kind | None:
        """Updates the next kind and returns it; None if there are no kinds."""
        self._until_compared -= 1
        kind = next(self._turn, None)
        if kind is None:
            if self._until_compared <= 0:
                self._until_compared = COMPARED_EVERY
                self._compare()
            self._turn = iter(list(self._kinds.values()))
            kind = next(self._turn, None)
        if kind is not None:
            self._update(kind)
        return kind

    def _update(self, kind: Kind) -> None:
        factor = self._factor(kind.traits)
        prior = [factor * chance for chance in self._base]
        assumed = OWN * self._count_needed(_node_size([kind])) * ASSUMED
        expected = list(map(mul, kind.seen, prior))
        chances = list(map(mul, prior, _near_ratios(kind.used, expected, assumed)))
        kind.rates = [_step_below(rate) for rate in gittins_indices(chances, self._widths)]

    def _compare(self) -> None:
        """Updates the chances of all kinds together, then the factors of one trait after another."""
        kinds = list(self._kinds.values())
        if not kinds:
            return
        weight = self._count_needed(_node_size(kinds))
        totals = zip(_totals(kind.used for kind in kinds), _totals(kind.seen for kind in kinds), strict=True)
        self._base = [(used + weight * ASSUMED) / (seen + weight) for used, seen in totals]
        used = [sum(kind.used) for kind in kinds]
        expected = [sum(map(mul, kind.seen, self._base)) for kind in kinds]
        for trait in range(len(self._factors)):
            levels = [kind.traits[trait] for kind in kinds]
            factors = self._factors[trait] = _ratios(levels, used, expected, weight * ASSUMED)
            expected = [tokens * factors[level] for tokens, level in zip(expected, levels, strict=True)]

    def _count_needed(self, node_size: float) -> float:
        """Number of observed bytes at which the evidence outweighs the prior.

        The tokens of a node are used together, so each node is one example.
        """
        return max(self._weight, NODES * node_size) * self.scale

    def _factor(self, traits: Traits) -> float:
        """How much more often nodes with these traits are used than the average node."""
        factor = 1.0
        for level, factors in zip(traits, self._factors, strict=True):
            factor *= factors.get(level, 1.0)
        return factor


def _node_size(kinds: Sequence[Kind]) -> float:
    """Mean size of the observed nodes."""
    nodes = sum([kind.nodes for kind in kinds])
    return sum([kind.seen[0] for kind in kinds]) / nodes if nodes else 0.0


def _ratios(
    levels: Sequence[int], used: Sequence[float], expected: Sequence[float], assumed: float
) -> dict[int, float]:
    """For each level of a trait: used bytes over the bytes that the earlier traits predict."""
    above: dict[int, float] = {}
    below: dict[int, float] = {}
    for level, more_used, more_expected in zip(levels, used, expected, strict=True):
        above[level] = above.get(level, assumed) + more_used
        below[level] = below.get(level, assumed) + more_expected
    return {level: above[level] / below[level] for level in above}


def _near_ratios(used: Sequence[float], expected: Sequence[float], assumed: float) -> list[float]:
    """For each band: used bytes over expected bytes, where more distant bands weigh less."""
    younger = []
    above = below = 0.0
    for more_used, more_expected in zip(used, expected, strict=True):
        younger.append((above, below))
        above = NEAR * (above + more_used)
        below = NEAR * (below + more_expected)
    ratios = []
    above = below = 0.0
    for more_used, more_expected in zip(reversed(used), reversed(expected), strict=True):
        younger_above, younger_below = younger.pop()
        above = NEAR * above + more_used
        below = NEAR * below + more_expected
        ratios.append((younger_above + above + assumed) / (younger_below + below + assumed))
    ratios.reverse()
    return ratios


def _totals(rows: Iterable[Sequence[float]]) -> list[float]:
    return [sum(column) for column in zip(*rows, strict=True)]


def _step_below(rate: float) -> float:
    """Rounds an index down, because small differences are chance. Of equal ones the oldest is evicted."""
    return exp2(floor(log2(rate) * STEPS) / STEPS)


def gittins_indices(chances: Sequence[float], widths: Sequence[float]) -> list[float]:
    """For each band of age the Gittins index: the highest rate of hits per time among all times to wait.

    See Aalto, Ayesta and Righter (2009). A band is joined with the next bands while they raise its rate.

    chances: the chance of reuse in each band
    widths: accesses in each band
    """
    joined: list[tuple[float, float, float, float]] = []
    rates = []
    for hits, width in zip(reversed(chances), reversed(widths), strict=True):
        if hits > MAX_CHANCE:
            hits = MAX_CHANCE
        time, alive = width * (1 - hits / 2), 1 - hits
        rate = hits / time
        while joined and joined[-1][0] >= rate:
            _, more_hits, more_time, survival = joined.pop()
            hits += alive * more_hits
            time += alive * more_time
            alive *= survival
            rate = hits / time
        joined.append((rate, hits, time, alive))
        rates.append(rate)
    rates.reverse()
    return rates
