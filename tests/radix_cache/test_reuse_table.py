"""Chances of reuse and indices, learned from counts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from arbora.radix_cache.reuse_table import Kind, ReuseTable, Traits, gittins_indices
from hypothesis import given
from hypothesis import strategies as st

WIDTHS = (1.0, 2.0, 4.0, 8.0)
bands = st.lists(st.tuples(st.floats(0, 0.9), st.floats(0.1, 100)), min_size=1, max_size=8)


def best_rate(chances: Sequence[float], widths: Sequence[float]) -> float:
    """The best rate of hits, found by trying every time to wait."""
    alive, hits, time, best = 1.0, 0.0, 0.0, 0.0
    for chance, width in zip(chances, widths, strict=True):
        hits += alive * chance
        time += alive * width * (1 - chance / 2)
        alive *= 1 - chance
        best = max(best, hits / time)
    return best


@given(bands)
def test_the_index_is_the_best_rate_over_all_times_to_wait(bands: list[tuple[float, float]]) -> None:
    chances, widths = [chance for chance, _ in bands], [width for _, width in bands]
    expected = [best_rate(chances[band:], widths[band:]) for band in range(len(bands))]
    assert gittins_indices(chances, widths) == pytest.approx(expected)


def test_with_equal_chances_the_index_falls_with_age() -> None:
    assert all(younger > older for younger, older in pairwise(gittins_indices([0.1] * 4, WIDTHS)))


def test_the_index_of_a_sure_later_reuse_rises_with_age() -> None:
    rates = gittins_indices([0, 0, 0.9, 0], WIDTHS)
    assert rates[0] < rates[1] < rates[2] > rates[3] == 0


def count(kind: Kind, seen: float, used: float, nodes: float = 1000, scale: float = 1) -> None:
    """Counts bytes of `nodes` nodes that were seen and used."""
    for _ in range(round(nodes)):
        kind.count_rested(seen / nodes, scale)
    kind.used[0] += used * scale


def learn_all(table: ReuseTable, kinds: int) -> None:
    """Compares the traits, then updates each kind."""
    for _ in range(16 + 2 * kinds):
        table.update_next()


def test_a_kind_that_is_used_more_is_worth_more() -> None:
    table = ReuseTable(WIDTHS, weight=10, half_life=1e9)
    often, seldom = table.kind(Traits(1, 0, 0, 0)), table.kind(Traits(0, 0, 0, 0))
    count(often, 1000, 600)
    count(seldom, 1000, 10)
    learn_all(table, 2)
    assert often.rates[0] > 0.5
    assert seldom.rates[0] < 0.1


def test_the_prior_of_an_unseen_kind_depends_on_each_of_its_traits() -> None:
    table = ReuseTable(WIDTHS, weight=10, half_life=1e9)
    for hits in (0, 1):
        for length in (0, 1):
            count(table.kind(Traits(hits, 0, length, 0)), 1000, 20 * (1 + 3 * hits) * (1 + 3 * length))
    learn_all(table, 4)
    unseen = [table.kind(Traits(hits, 0, length, 9)) for hits in (0, 1) for length in (0, 1)]
    assert unseen[0].rates[0] < unseen[1].rates[0] < unseen[3].rates[0]
    assert unseen[0].rates[0] < unseen[2].rates[0] < unseen[3].rates[0]


def test_observations_of_a_kind_count_at_near_ages_too() -> None:
    table = ReuseTable(WIDTHS, weight=10, half_life=1e9)
    kinds = {(hits, length): table.kind(Traits(hits, 0, length, 0)) for hits in (0, 1) for length in (0, 1)}
    for (hits, length), kind in kinds.items():
        count(kind, 1000, 600 if hits == length else 200)  # neither trait alone tells anything
        kind.seen[1:] = [30, 20, 10]
        kind.used[1:] = [3, 2, 1]
    learn_all(table, 4)
    more = [often / seldom for often, seldom in zip(kinds[0, 0].rates, kinds[0, 1].rates, strict=True)]
    assert more == sorted(more, reverse=True)
    assert more[0] > more[3] > 1


def test_little_evidence_changes_little() -> None:
    table = ReuseTable(WIDTHS, weight=1000, half_life=1e9)
    kind = table.kind(Traits(0, 0, 0, 0))
    before = kind.rates[0]
    count(kind, 1, 1, nodes=1)
    learn_all(table, 1)
    assert kind.rates[0] == pytest.approx(before, rel=0.1)


def test_a_few_nodes_are_little_evidence_however_long_they_are() -> None:
    rates = []
    for nodes in (2, 2000):
        table = ReuseTable(WIDTHS, weight=10, half_life=1e9)
        kind = table.kind(Traits(0, 0, 0, 0))
        count(kind, 2000, 1000, nodes)
        learn_all(table, 1)
        rates.append(kind.rates[0])
    assert rates[0] < rates[1]


def test_kinds_that_are_used_about_as_much_are_worth_the_same() -> None:
    table = ReuseTable(WIDTHS, weight=10, half_life=1e9)
    kinds = [table.kind(Traits(hits, 0, 0, 0)) for hits in (0, 1)]
    for kind, used in zip(kinds, (320, 330), strict=True):
        count(kind, 1000, used)
    learn_all(table, 2)
    assert kinds[0].rates[0] == kinds[1].rates[0]


def test_old_counts_yield_to_new_ones() -> None:
    table = ReuseTable(WIDTHS, weight=10, half_life=100)
    kind = table.kind(Traits(0, 0, 0, 0))
    count(kind, 1000, 800)
    table.advance(1000)
    count(kind, 1000, 10, scale=table.scale)
    learn_all(table, 1)
    assert kind.rates[0] < 0.1


def test_rescaled_counts_give_the_same_index() -> None:
    table = ReuseTable(WIDTHS, weight=10, half_life=100)
    table.advance(19_900)
    used = {(0, 0): 10, (0, 1): 800, (1, 0): 800, (1, 1): 10}  # which no factors of traits suggest
    kinds = [table.kind(Traits(hits, 0, length, 0)) for hits, length in used]
    for kind, times in zip(kinds, used.values(), strict=True):
        count(kind, 1000, times, scale=table.scale)
    learn_all(table, 4)
    before = [kind.rates[0] for kind in kinds]
    table.advance(20_000)
    assert table.scale == 1
    assert [kind.rates[0] for kind in kinds] == pytest.approx(before, rel=0.1)


def test_a_very_long_run_changes_no_index() -> None:
    table = ReuseTable(WIDTHS, weight=10, half_life=100)
    kind = table.kind(Traits(0, 0, 0, 0))
    for now in range(0, 200_000, 500):
        table.advance(now)
        count(kind, 1000, 320, scale=table.scale)
        learn_all(table, 1)
        assert kind.rates[0] == pytest.approx(0.36, rel=0.1)
