"""Replays a trace through several simulated replicas, for each rule by which a router may choose one.

Each replica has a real prefix cache with pages of a block of the trace, and computes prompts one after the
other; open replies take their part of its time. Arbora's rule runs in the real router, which gets the reports
of the caches and backlogs --delay-ms after they change. The other rules know what a router for them knows:
the prompts that it has sent, and the requests that are open.
Prints the share of prompt tokens that were cached, and the time to first token in simulated seconds. Then it
measures how many prompts of 12,000 tokens the router routes in a second of processor time, with pages of 16
tokens and caches full of conversations.
Run: PYTHONSAFEPATH=1 python bench/fleet_sim.py TRACE [--replicas 8] [--tokens 1000000] [--speed 7]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from arbora.frontend.core.replica import router as router_module

sys.path.append(str(Path(__file__).parent / "lib"))
from fleet_routes import measure_routes
from fleet_rules import RULES
from simulated_fleet import Machine, Simulation, read_requests

HEADER = "rule                               hit %  TTFT p50    p90     p99   busiest/mean"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("trace", type=Path, help="requests in Mooncake's format")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=1_000_000, help="that the cache of a replica holds")
    parser.add_argument("--speed", type=float, default=7.0, help="of time: 2 halves all pauses")
    parser.add_argument("--requests", type=int, help="replay only so many")
    parser.add_argument("--token-us", type=float, default=18.0, help="time of a token of a prompt")
    parser.add_argument("--reply-us", type=float, default=250.0, help="for a token of a reply")
    parser.add_argument("--delay-ms", type=float, default=20.0, help="of a report to the router")
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES), metavar="RULE")
    parser.add_argument("--bounds", nargs="+", type=float, help="in seconds, of Arbora's rule alone")
    given = parser.parse_args()
    machine = Machine(given.tokens, given.token_us / 1e6, given.reply_us / 1e6, given.delay_ms / 1e3)
    requests = read_requests(given.trace, given.speed, given.requests)
    print(HEADER)
    for name in given.rules if given.bounds is None else ():
        report(name, Simulation(machine, requests, given.replicas, RULES[name]))
    for bound in given.bounds or ():
        router_module.MAX_LATER_S = bound
        report(f"Arbora's, {bound} s", Simulation(machine, requests, given.replicas, RULES["Arbora's"]))
    routes, nodes = measure_routes(given.replicas, given.tokens)
    print(f"{routes:,.0f} routes/s with {given.replicas} replicas; the mirror has {nodes:,} nodes")


def report(name: str, simulation: Simulation) -> None:
    simulation.run()
    p50, p90, p99 = np.percentile(simulation.first_token_s, [50, 90, 99])
    work = [replica.work_s for replica in simulation.replicas]
    print(
        f"{name:34}{100 * simulation.hit_rate:6.1f}{p50:10.2f}{p90:7.2f}{p99:8.2f}"
        f"{max(work) / (sum(work) / len(work)):15.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
