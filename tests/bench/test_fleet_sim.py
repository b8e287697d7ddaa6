"""The rules of routers in the simulation of a fleet, and the measurement of the router's speed."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest
from arbora.frontend.fleet.figures import Figures
from arbora.frontend.fleet.replica import Shape
from arbora.frontend.fleet.step_cost import StepCost
from arbora.frontend.fleet.workload import make_conversations

sys.path.append(str(Path(__file__).parents[2] / "bench" / "lib"))
from fleet_routes import measure_routes
from fleet_rules import RULES, open_simulation

SHAPE = Shape(pages=3200, page_size=16)
COST = StepCost(base=8.0, prefill=0.3, row=0.2)
REQUESTS = 150


def simulate(name: str) -> tuple[Figures, float]:
    """The figures of a rule, and the mean time to first token."""
    arrivals = make_conversations(rate=4.0, requests=REQUESTS)
    simulation = open_simulation(SHAPE, COST, arrivals, 4, RULES[name], 0.002)
    figures = simulation.run()
    assert all(served.ends == 1 for served in simulation.served)
    assert [served.tokens for served in simulation.served] == [arrival.output for arrival in arrivals]
    assert all(replica.scheduler.idle for replica in simulation.replicas)
    waits = (served.first_at - each.at for each, served in zip(arrivals, simulation.served, strict=True))
    return figures, sum(waits) / REQUESTS


simulate_once = cache(simulate)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_serves_all_requests_in_a_way_that_can_be_repeated(name: str) -> None:
    assert simulate(name) == simulate_once(name)


def test_the_real_router_hits_more_than_turns_and_waits_least() -> None:
    hits = {name: simulate_once(name)[0].hit_share for name in RULES}
    waits = {name: simulate_once(name)[1] for name in RULES}
    assert hits["Arbora's"] > hits["round robin"] + 0.2
    assert min(waits, key=lambda name: waits[name]) == "Arbora's"


def test_the_speed_of_the_router_is_measured_with_full_caches() -> None:
    routes, nodes = measure_routes(replicas=2, tokens=60_000)
    assert routes > 100
    assert nodes > 8, "each replica has several conversations"
