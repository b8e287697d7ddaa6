"""Replays a trace through several simulated replicas, for each rule by which a router may choose one.

Each replica runs the real scheduler and prefix cache (frontend/fleet); its steps only take time. A step takes
--base-ms, --token-us for each token of a prompt, and --row-us for each row in decode. With the defaults and
all 64 slots in decode, a token of a reply takes 0.25 ms of its replica's time. Arbora's rule is the real
router, which gets the reports of the replicas --delay-ms late. The other rules know what a router for them
knows: the prompts that it has sent, and the requests that are open.
Prints the share of prompt tokens that were cached, and the time to first token in simulated seconds. Then it
measures how many prompts of 12,000 tokens the router routes in a second of processor time, with pages of 16
tokens and caches full of conversations.
Run: PYTHONSAFEPATH=1 python bench/fleet_sim.py TRACE [--replicas 8] [--tokens 1000000] [--speed 7]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from arbora.frontend.core.replica import router as router_module
from arbora.frontend.fleet.figures import Figures
from arbora.frontend.fleet.replica import Shape
from arbora.frontend.fleet.simulation import MakeRule
from arbora.frontend.fleet.step_cost import StepCost
from arbora.frontend.fleet.workload import read_trace

sys.path.append(str(Path(__file__).parent / "lib"))
from fleet_routes import measure_routes
from fleet_rules import RULES, open_simulation

PAGE_SIZE = 16  # tokens, as servers have
HEADER = "rule                               hit %  TTFT p50    p90     p99   busiest/mean"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("trace", type=Path, help="requests in Mooncake's format")
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=1_000_000, help="that the cache of a replica holds")
    parser.add_argument("--speed", type=float, default=7.0, help="of time: 2 halves all pauses")
    parser.add_argument("--requests", type=int, help="replay only so many")
    parser.add_argument("--base-ms", type=float, default=8.0, help="time of a step beside its tokens")
    parser.add_argument("--token-us", type=float, default=18.0, help="time of a token of a prompt")
    parser.add_argument("--row-us", type=float, default=125.0, help="time of a row in decode")
    parser.add_argument("--delay-ms", type=float, default=20.0, help="of a report to the router")
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES), metavar="RULE")
    parser.add_argument("--bounds", nargs="+", type=float, help="in seconds, of Arbora's rule alone")
    given = parser.parse_args()
    shape = Shape(pages=given.tokens // PAGE_SIZE, page_size=PAGE_SIZE)
    cost = StepCost(base=given.base_ms, prefill=given.token_us / 1e3, row=given.row_us / 1e3)
    arrivals = read_trace(given.trace, given.speed, given.requests)

    def simulate(rule: MakeRule) -> Figures:
        return open_simulation(shape, cost, arrivals, given.replicas, rule, given.delay_ms / 1e3).run()

    print(HEADER)
    for name in given.rules if given.bounds is None else ():
        report(name, simulate(RULES[name]))
    for bound in given.bounds or ():
        router_module.MAX_LATER_S = bound
        report(f"Arbora's, {bound} s", simulate(RULES["Arbora's"]))
    routes, nodes = measure_routes(given.replicas, given.tokens)
    print(f"{routes:,.0f} routes/s with {given.replicas} replicas; the mirror has {nodes:,} nodes")


def report(name: str, figures: Figures) -> None:
    ttft = figures.ttft_s
    print(
        f"{name:34}{100 * figures.hit_share:6.1f}{ttft.p50:10.2f}{ttft.p90:7.2f}{ttft.p99:8.2f}"
        f"{figures.busiest:15.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
