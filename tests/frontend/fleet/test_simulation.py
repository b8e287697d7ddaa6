"""The simulation of a fleet: each request is served once, at the times that the steps take."""

from __future__ import annotations

import random
from collections.abc import Sequence
from multiprocessing import active_children

import hypothesis.strategies as some
import pytest
from arbora.frontend.fleet.replica import Shape
from arbora.frontend.fleet.simulation import Simulation, divide
from arbora.frontend.fleet.step_cost import StepCost
from arbora.frontend.fleet.workload import Arrival, make_conversations
from arbora.runtime.errors import ConfigError
from hypothesis import given

SHAPE = Shape(pages=4000, page_size=16)
COST = StepCost(base=8.0, prefill=0.02, row=0.1, context=1e-5)


@pytest.fixture(scope="module")
def arrivals() -> Sequence[Arrival]:
    return make_conversations(rate=20.0, requests=150)


def one(at: float, first: int, length: int, output: int) -> Arrival:
    return Arrival(at, range(first, first + -(-length // 16)), 16, length, output)


def test_one_request_takes_the_time_of_its_steps() -> None:
    ran = Simulation(SHAPE, StepCost(base=10.0, prefill=0.1), [one(1.0, 0, 100, 5)])
    figures = ran.run()
    (served,) = ran.served
    assert served.first_at == pytest.approx(1.0 + 0.010 + 100 * 0.0001)
    assert list(ran.gaps_s) == pytest.approx([0.010] * 4)
    assert figures.seconds == pytest.approx(0.020 + 4 * 0.010)
    assert figures.output_tokens_per_s == pytest.approx(5 / 0.060)


def test_a_prompt_that_was_computed_before_hits_except_for_its_last_token() -> None:
    ran = Simulation(SHAPE, COST, [one(0.0, 0, 160, 2), one(5.0, 0, 160, 2)])
    ran.run()
    assert [served.cached for served in ran.served] == [0, 159]


def test_rows_in_decode_pay_for_their_context() -> None:
    ran = Simulation(SHAPE, StepCost(context=1.0), [one(0.0, 0, 100, 3)])
    ran.run()
    assert list(ran.gaps_s) == pytest.approx([0.101, 0.102])


@pytest.mark.parametrize("replicas", [1, 3])
def test_each_request_is_answered_once_and_whole(replicas: int, arrivals: Sequence[Arrival]) -> None:
    ran = Simulation(SHAPE, COST, arrivals, replicas)
    figures = ran.run()
    assert all(served.ends == 1 for served in ran.served)
    assert [served.tokens for served in ran.served] == [arrival.output for arrival in arrivals]
    assert figures.requests == len(arrivals)
    assert figures.output_tokens == sum(arrival.output for arrival in arrivals)
    assert len(ran.gaps_s) == figures.output_tokens - len(arrivals)
    counted = [replica.scheduler.stats() for replica in ran.replicas]
    assert sum(stats.output_tokens for stats in counted) == figures.output_tokens
    assert all(replica.scheduler.idle and not replica.is_running for replica in ran.replicas)
    for arrival, served in zip(arrivals, ran.served, strict=True):
        assert arrival.at < served.first_at <= served.last_at
        assert 0 <= served.cached < arrival.length


def test_a_simulation_can_be_repeated(arrivals: Sequence[Arrival]) -> None:
    first, again = (Simulation(SHAPE, COST, arrivals, 3) for _ in range(2))
    assert first.run() == again.run()
    assert first.served == again.served


def test_the_router_spreads_requests_and_keeps_conversations_together(arrivals: Sequence[Arrival]) -> None:
    ran = Simulation(SHAPE, COST, arrivals, 3)
    figures = ran.run()
    assert {served.replica for served in ran.served} == {0, 1, 2}
    alone = Simulation(SHAPE, COST, arrivals).run()
    assert figures.hit_share > 0.8 * alone.hit_share
    assert figures.ttft_s.p99 < alone.ttft_s.p99


def test_a_request_that_is_too_long_is_refused_and_counted() -> None:
    shape = Shape(pages=4000, page_size=16, max_model_len=100)
    ran = Simulation(shape, COST, [one(0.0, 0, 101, 2), one(0.0, 50, 50, 2)])
    figures = ran.run()
    assert (figures.requests, figures.refused) == (1, 1)
    assert [served.is_refused for served in ran.served] == [True, False]


def test_steps_are_slower_while_other_replicas_share_the_processors() -> None:
    both = [one(0.0, 0, 100, 20), one(0.0, 500, 100, 20)]
    apart = Simulation(SHAPE, COST, both, 2).run()
    shared = Simulation(SHAPE, COST, both, 2, slowdown=lambda number, computing: len(computing)).run()
    assert shared.seconds == pytest.approx(2 * apart.seconds, rel=0.1)


def test_a_full_cache_still_serves_all() -> None:
    source = random.Random(1)
    arrivals = [one(0.01 * at, 100 * at, source.randrange(200, 900), 40) for at in range(60)]
    ran = Simulation(Shape(pages=200, page_size=16), COST, arrivals, 2)
    assert ran.run().output_tokens == 60 * 40
    assert all(served.ends == 1 for served in ran.served)


def test_several_processes_simulate_the_same(arrivals: Sequence[Arrival]) -> None:
    alone, apart = (Simulation(SHAPE, COST, arrivals, 5, processes=count) for count in (1, 3))
    assert alone.run() == apart.run()
    assert alone.served == apart.served
    assert sorted(alone.gaps_s) == sorted(apart.gaps_s)
    used = {served.replica for served in apart.served}
    assert all(used & set(part) for part in divide(5, 3)), "each process has served requests"


@given(replicas=some.integers(1, 1024), processes=some.integers(1, 20))
def test_processes_divide_the_replicas(replicas: int, processes: int) -> None:
    parts = divide(replicas, processes)
    assert len(parts) == processes
    assert sorted(number for part in parts for number in part) == [*range(replicas)]
    assert max(map(len, parts[1:]), default=0) - min(map(len, parts[1:]), default=0) <= 1


def test_a_process_that_is_killed_ends_the_simulation_with_an_error(arrivals: Sequence[Arrival]) -> None:
    ran = Simulation(SHAPE, COST, arrivals, 2, processes=2)
    (child,) = active_children()
    child.kill()
    with pytest.raises(ConfigError, match="has ended with -9, perhaps for lack of memory"):
        ran.run()
    assert not active_children()
