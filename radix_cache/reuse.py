"""How likely it is, and how soon, that what was last used some time ago is used again: learned by counting."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import mul
from typing import NamedTuple

ASSUMED = 0.1  # the chance of reuse in any band before anything is known: equal in all bands, as if LRU were right
MOST = 0.9  # no chance is taken for higher


class Traits(NamedTuple):
    """What tells nodes apart, each on a coarse scale."""

    hits: int
    parent: int
    length: int
    answer: int


class Kind:
    """Nodes of equal traits: how many tokens lived to see each band of ages, and how many were used in it."""

    __slots__ = ("expected", "judged", "rates", "seen", "traits", "used")

    def __init__(self, traits: Traits, bands: int, now: int) -> None:
        self.traits = traits
        self.judged = now
        self.seen = [0.0] * bands
        self.used = [0.0] * bands
        self.expected = 0.0  # uses, had its traits no influence
        self.rates: list[float] = []  # what a token is worth, by band


class ReuseTable:
    """Learns the worth of each kind, one kind at a time.

    A kind that was rarely seen is taken for what its traits suggest: the chances of all kinds together, times
    a factor for each trait (how much more often nodes of that trait were used than expected).
    """

    def __init__(self, widths: Sequence[float], weight: float, half_life: float) -> None:
        """
        widths: of the bands of age
        weight: tokens that must be seen before they count for more than what was assumed
        half_life: of counts
        """
        self._widths = widths
        self._weight = weight
        self._half_life = half_life
        self._kinds: dict[Traits, Kind] = {}
        self._turn: Iterator[Kind] = iter(())
        self._base = [ASSUMED] * len(widths)
        self._factors: list[dict[int, float]] = [{} for _ in Traits._fields]

    def kind(self, traits: Traits, now: int) -> Kind:
        kind = self._kinds.get(traits)
        if kind is None:
            kind = self._kinds[traits] = Kind(traits, len(self._widths), now)
            self._judge(kind)
        return kind

    def learn(self, now: int) -> Kind | None:
        """Judges the kind whose turn it is anew and returns it, if there is any."""
        kind = next(self._turn, None)
        if kind is None:
            self._compare()
            self._turn = iter(list(self._kinds.values()))
            kind = next(self._turn, None)
        if kind is not None:
            self._fade(kind, now)
            self._judge(kind)
        return kind

    def _fade(self, kind: Kind, now: int) -> None:
        left = 0.5 ** ((now - kind.judged) / self._half_life)
        kind.judged = now
        kind.seen = [count * left for count in kind.seen]
        kind.used = [count * left for count in kind.used]

    def _judge(self, kind: Kind) -> None:
        factor = self._factor(kind, len(self._factors))
        weight = self._weight
        chances = [
            min((used + weight * factor * base) / (seen + weight), MOST)
            for used, seen, base in zip(kind.used, kind.seen, self._base, strict=True)
        ]
        kind.expected = sum(map(mul, kind.seen, self._base))
        kind.rates = worth(chances, self._widths)

    def _compare(self) -> None:
        """Learns the chances of all kinds together, then the factors of one trait after another."""
        kinds = self._kinds.values()
        if not kinds:
            return
        weight = self._weight
        self._base = [
            (used + weight * ASSUMED) / (seen + weight)
            for used, seen in zip(_totals(k.used for k in kinds), _totals(k.seen for k in kinds), strict=True)
        ]
        for trait in range(len(self._factors)):
            self._factors[trait] = self._factors_of(trait)

    def _factors_of(self, trait: int) -> dict[int, float]:
        """For each level of a trait: uses, over those that the traits before it explain."""
        assumed = self._weight * ASSUMED
        used: dict[int, float] = {}
        expected: dict[int, float] = {}
        for kind in self._kinds.values():
            level = kind.traits[trait]
            used[level] = used.get(level, assumed) + sum(kind.used)
            expected[level] = expected.get(level, assumed) + kind.expected * self._factor(kind, trait)
        return {level: used[level] / expected[level] for level in used}

    def _factor(self, kind: Kind, traits: int) -> float:
        """The product of the factors of the first `traits` traits."""
        factor = 1.0
        for level, factors in zip(kind.traits[:traits], self._factors, strict=False):
            factor *= factors.get(level, 1.0)
        return factor


def _totals(rows: Iterable[Sequence[float]]) -> list[float]:
    return [sum(column) for column in zip(*rows, strict=True)]


def worth(chances: Sequence[float], widths: Sequence[float]) -> list[float]:
    """For each band the best rate of hits per time that keeping a token from its start on can bring.

    The best over all times to wait: the Gittins index of scheduling theory (Aalto, Ayesta and Righter, 2009).
    A band is joined with those after it as long as they raise its rate. Chances are below 1.
    """
    joined: list[tuple[float, float, float]] = []
    rates = []
    for chance, width in zip(reversed(chances), reversed(widths), strict=True):
        hits, time, alive = chance, width * (1 - chance / 2), 1 - chance
        while joined and joined[-1][0] * time >= hits * joined[-1][1]:
            more_hits, more_time, survival = joined.pop()
            hits, time, alive = hits + alive * more_hits, time + alive * more_time, alive * survival
        joined.append((hits, time, alive))
        rates.append(hits / time)
    return rates[::-1]
