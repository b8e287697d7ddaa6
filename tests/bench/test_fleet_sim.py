"""The simulation of a fleet: every rule serves all requests, and the real router serves them soonest."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench" / "lib"))
from fleet_routes import measure_routes
from fleet_rules import RULES
from simulated_fleet import BLOCK, Machine, Request, Simulation, read_requests

MACHINE = Machine(tokens=100 * BLOCK, token_s=1e-4, reply_token_s=1e-3, delay_s=0.02)
CONVERSATIONS = 12
TURNS = 10


def write_trace(path: Path) -> Path:
    """Conversations that begin with the same block and grow by two blocks a turn, in random order."""
    source = random.Random(1)
    turns = [number for number in range(CONVERSATIONS) for _ in range(TURNS)]
    source.shuffle(turns)
    lengths = dict.fromkeys(range(CONVERSATIONS), 1)
    with path.open("w") as lines:
        for at, number in enumerate(turns):
            lengths[number] += 2
            blocks = [0, *(1000 * (number + 1) + block for block in range(lengths[number] - 1))]
            length = len(blocks) * BLOCK - 100
            fields = {"timestamp": 90 * at, "input_length": length, "output_length": 50, "hash_ids": blocks}
            lines.write(json.dumps(fields) + "\n")
    return path


@pytest.fixture
def requests(tmp_path: Path) -> list[Request]:
    return read_requests(write_trace(tmp_path / "trace.jsonl"), 1.0, None)


def simulate(name: str, requests: list[Request]) -> Simulation:
    simulation = Simulation(MACHINE, requests, 4, RULES[name])
    simulation.run()
    assert len(simulation.first_token_s) == len(requests)
    assert min(simulation.first_token_s) > 0
    assert not any(each.open or each.is_busy or each.take_reports() for each in simulation.replicas)
    return simulation


@pytest.mark.parametrize("name", RULES)
def test_a_rule_serves_all_requests_in_a_way_that_can_be_repeated(name: str, requests: list[Request]) -> None:
    first, again = simulate(name, requests), simulate(name, requests)
    assert first.first_token_s == again.first_token_s
    assert first.hit_rate == again.hit_rate


def test_the_real_router_hits_more_than_turns_and_waits_least(requests: list[Request]) -> None:
    ran = {name: simulate(name, requests) for name in RULES}
    hits = {name: simulation.hit_rate for name, simulation in ran.items()}
    means = {name: sum(simulation.first_token_s) for name, simulation in ran.items()}
    assert hits["Arbora's"] > hits["round robin"] + 0.2
    assert min(means, key=lambda name: means[name]) == "Arbora's"


def test_the_speed_of_the_router_is_measured_with_full_caches() -> None:
    routes, nodes = measure_routes(replicas=2, tokens=60_000)
    assert routes > 100
    assert nodes > 8, "each replica has several conversations"
