"""How likely and how soon something is used again, by its age since it was last used: learned from counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import exp2, floor, log2
from operator import mul
from typing import NamedTuple

ASSUMED = 0.1  # the chance of reuse in each band of age before anything is known: equal, as if LRU were right
MOST = 0.9  # chances above are taken for that
NEAR = 0.6  # what counts 1 in its own band of age counts so much in the next, and so on
NODES = 16  # seen at least, before they count for more than what was assumed
OWN = 1 / 4  # of what must be seen to change a trait's factor changes a kind's own
COMPARED_EVERY = 16  # lessons at least
STEPS = 4  # in a doubling of worth: what differs by less is taken for equal
LARGEST_SCALE = 1e60


class Traits(NamedTuple):
    """What tells nodes apart, each on a coarse scale."""

    hits: int
    past: int
    length: int
    answer: int


class Kind:
    """Nodes of equal traits: how much of them lived to see each band of age, and how much was used in it."""

    __slots__ = ("nodes", "rates", "seen", "traits", "used")

    def __init__(self, traits: Traits, bands: int) -> None:
        self.traits = traits
        self.seen = [0.0] * bands
        self.used = [0.0] * bands
        self.nodes = 0.0  # that made up what was seen in the first band
        self.rates: list[float] = []  # what keeping a token is worth, by band

    def rested(self, size: float, scale: float) -> None:
        """A node of that size is out of use, and enters the first band."""
        self.seen[0] += size * scale
        self.nodes += scale

    def shrink(self, times: float) -> None:
        self.seen = [count / times for count in self.seen]
        self.used = [count / times for count in self.used]
        self.nodes /= times


class ReuseTable:
    """Learns the worth of each kind, one kind at a time.

    A kind that was rarely seen is taken for what its traits suggest: the chances of all kinds together, times
    a factor for each trait (how much more often nodes of that trait were used than expected). What was seen
    of it at about an age changes its chances at that age by one more factor. What is new counts more: instead
    of all old counts getting smaller, `scale`, by which new ones are multiplied, grows.
    """

    def __init__(self, widths: Sequence[float], weight: float, half_life: float) -> None:
        """
        widths: of the bands of age, in accesses
        weight: how much must be seen at least before it counts for more than what was assumed
        half_life: of counts, in accesses
        """
        self.scale = 1.0
        self._widths = widths
        self._weight = weight
        self._half_life = half_life
        self._origin = 0  # when `scale` was 1
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
            self._judge(kind)
        return kind

    def advance(self, now: int) -> None:
        self.scale = 2.0 ** ((now - self._origin) / self._half_life)
        if self.scale > LARGEST_SCALE:
            largest, self._origin, self.scale = self.scale, now, 1.0
            for kind in self._kinds.values():
                kind.shrink(largest)  # worth is a matter of ratios, and stays

    def learn(self) -> Kind | None:
        """Judges the kind whose turn it is anew and returns it, if there is any."""
        self._until_compared -= 1
        kind = next(self._turn, None)
        if kind is None:
            if self._until_compared <= 0:
                self._until_compared = COMPARED_EVERY
                self._compare()
            self._turn = iter(list(self._kinds.values()))
            kind = next(self._turn, None)
        if kind is not None:
            self._judge(kind)
        return kind

    def _judge(self, kind: Kind) -> None:
        factor = self._factor(kind.traits)
        suggested = [factor * chance for chance in self._base]
        assumed = OWN * self._needed(_node_size([kind])) * ASSUMED
        expected = list(map(mul, kind.seen, suggested))
        chances = list(map(mul, suggested, _near_ratios(kind.used, expected, assumed)))
        kind.rates = [_step_below(rate) for rate in worth(chances, self._widths)]

    def _compare(self) -> None:
        """Learns the chances of all kinds together, then the factors of one trait after another."""
        kinds = list(self._kinds.values())
        if not kinds:
            return
        weight = self._needed(_node_size(kinds))
        totals = zip(_totals(kind.used for kind in kinds), _totals(kind.seen for kind in kinds), strict=True)
        self._base = [(used + weight * ASSUMED) / (seen + weight) for used, seen in totals]
        used = [sum(kind.used) for kind in kinds]
        expected = [sum(map(mul, kind.seen, self._base)) for kind in kinds]
        for trait in range(len(self._factors)):
            levels = [kind.traits[trait] for kind in kinds]
            factors = self._factors[trait] = _ratios(levels, used, expected, weight * ASSUMED)
            expected = [tokens * factors[level] for tokens, level in zip(expected, levels, strict=True)]

    def _needed(self, node_size: float) -> float:
        """How much must be seen before it counts for more than what was assumed.

        The tokens of a node are used together: however many they are, they are one example.
        """
        return max(self._weight, NODES * node_size) * self.scale

    def _factor(self, traits: Traits) -> float:
        """How much more often nodes of these traits are used than all together."""
        factor = 1.0
        for level, factors in zip(traits, self._factors, strict=True):
            factor *= factors.get(level, 1.0)
        return factor


def _node_size(kinds: Sequence[Kind]) -> float:
    """The mean of all nodes that came to rest."""
    nodes = sum([kind.nodes for kind in kinds])
    return sum([kind.seen[0] for kind in kinds]) / nodes if nodes else 0.0


def _ratios(
    levels: Sequence[int], used: Sequence[float], expected: Sequence[float], assumed: float
) -> dict[int, float]:
    """For each level of a trait: what was used, over what the traits before it lead one to expect."""
    above: dict[int, float] = {}
    below: dict[int, float] = {}
    for level, more_used, more_expected in zip(levels, used, expected, strict=True):
        above[level] = above.get(level, assumed) + more_used
        below[level] = below.get(level, assumed) + more_expected
    return {level: above[level] / below[level] for level in above}


def _near_ratios(used: Sequence[float], expected: Sequence[float], assumed: float) -> list[float]:
    """For each band what was used, over what was expected; other bands count less the further they are."""
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
    """Small differences of what was learned are chance: among equals the oldest goes."""
    return exp2(floor(log2(rate) * STEPS) / STEPS)


def worth(chances: Sequence[float], widths: Sequence[float]) -> list[float]:
    """For each band the best rate of hits per time that keeping a token from its start on can bring.

    The best over all times to wait: the Gittins index of scheduling theory (Aalto, Ayesta and Righter, 2009).
    A band is joined with those after it as long as they raise its rate.
    """
    joined: list[tuple[float, float, float, float]] = []
    rates = []
    for hits, width in zip(reversed(chances), reversed(widths), strict=True):
        if hits > MOST:
            hits = MOST
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
