"""Compares simulated replicas with real ones on the same requests: throughput, hits, times to first token.

    PYTHONSAFEPATH=1 python bench/fleet_calibrate.py MODEL --trace PATH --replicas 3 --rate 2

First it starts as many replicas as have cores of their own, replays other requests of the trace (from
--learn on), and fits the cost of the recorded steps as `arbora plan --fleet --steps` does. Then it starts a
server with all replicas, and replays the requests from --skip on as `fleet.py` does: a block of the trace is
16 tokens, and prompts are cut to --max-prompt. The simulation gets the same requests at the same times, after
the same warm-up. Replicas that share cores slow each other: each of their steps takes as many times longer as
replicas compute on its cores when it begins. Prints the median of the rounds beside the simulation, and their
ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

import httpx
from arbora.frontend.cli.plan.estimate import PAGE_SIZE
from arbora.frontend.fleet.figures import Figures
from arbora.frontend.fleet.replica import Shape
from arbora.frontend.fleet.simulation import Simulation
from arbora.frontend.fleet.step_cost import fit_cost, measure_fit, read_steps
from arbora.frontend.fleet.workload import Arrival
from arbora.frontend.launch.placement import divide_cores
from arbora.runtime.scheduler.step_records import MeasuredStep
from arbora.runtime.system_cores import find_cores

sys.path.append(str(Path(__file__).parent / "lib"))
from compared_servers import ServerCommand
from replayed_trace import BLOCK, Replay, choose_times, make_body, replay
from reports import machine, percentile, table
from server_process import ServerProcess, exit_on_sigterm
from traces import Request, read_trace

SLOTS = 64
OTHER_BLOCK = 1 << 29
"""added to the blocks of the warm-up, which has nothing in common with the requests"""
WARM_UP_ENDS_S = 300.0
Line = tuple[float, float, float, float]
COLUMNS = ("output tokens/s", "tokens hit, %", "TTFT p50 in s", "p99")


def main() -> None:
    exit_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--trace", type=Path, required=True, help="requests in Mooncake's format")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--rate", type=float, default=2.0, help="requests a second")
    parser.add_argument("--skip", type=int, default=0, help="first requests of the trace to leave out")
    parser.add_argument("--requests", type=int, default=300, help="of each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-prompt", type=int, default=2000, help="tokens")
    parser.add_argument("--kv-memory", default="512MiB", help="of each replica")
    parser.add_argument("--learn", type=int, default=0, help="first request of those whose steps are fitted")
    given = parser.parse_args()
    trace = read_trace(given.trace)
    to_learn, requests = (trace[at : at + given.requests] for at in (given.learn, given.skip))
    with tempfile.TemporaryDirectory() as directory:
        steps = asyncio.run(record_steps(given, to_learn, Path(directory)))
        pages, real = asyncio.run(serve(given, requests, Path(directory)))
    simulated = simulate(given, requests, pages, steps)
    middle = [statistics.median(column) for column in zip(*real, strict=True)]
    ratios = [round(found / true, 2) if true else "-" for found, true in zip(simulated, middle, strict=True)]
    print(machine())
    rows = [("real, " + str(number + 1), *line) for number, line in enumerate(real)]
    print(table(("", *COLUMNS), [*rows, ("simulated", *simulated), ("simulated ÷ median", *ratios)]))


def start(given: argparse.Namespace, replicas: int, directory: Path, *flags: str) -> ServerProcess:
    options = {
        "replicas": replicas,
        "kv-memory": given.kv_memory,
        "max-running": SLOTS,
        "speculate": "off",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "arbora", "serve", given.model, *words, *flags]
    return ServerProcess(ServerCommand("arbora", command, {"PYTHONSAFEPATH": "1"}), directory / "log")


async def record_steps(
    given: argparse.Namespace, requests: Sequence[Request], directory: Path
) -> list[MeasuredStep]:
    path = directory / "steps"
    replicas = min(given.replicas, len(find_cores()))
    rate, first = given.rate * replicas / given.replicas, 0
    with start(given, replicas, directory, "--record-steps", str(path)) as server:
        for salt in ("warm-up", "learned"):
            first = len(path.read_bytes().splitlines()) - replicas  # each writes a header
            await replay(server.url, requests, rate, given.max_prompt, salt)
    _, steps = read_steps(path)
    return steps[first:]


async def serve(
    given: argparse.Namespace, requests: Sequence[Request], directory: Path
) -> tuple[int, list[Line]]:
    """Returns the pages of a replica, and the figures of each round."""
    rounds = []
    with start(given, given.replicas, directory) as server:
        await replay(server.url, requests, given.rate, given.max_prompt, "warm-up")
        state = httpx.get(f"{server.url}/server", timeout=60).raise_for_status().json()
        assert state["replicas_up"] == given.replicas
        for number in range(given.rounds):
            httpx.delete(f"{server.url}/cache", timeout=60).raise_for_status()
            found = await replay(server.url, requests, given.rate, given.max_prompt, str(number))
            assert not found.failed, f"{found.failed} requests failed"
            rounds.append(describe_real(found))
            print(*rounds[-1], sep="\t", flush=True)
    return state["pages"][0]["total"] // given.replicas, rounds


def describe_real(found: Replay) -> Line:
    times = found.first_token_s
    rate, hits = found.output_tokens / found.seconds, 100 * found.cached_tokens / found.prompt_tokens
    return round(rate, 1), round(hits, 1), percentile(times, 50), percentile(times, 99)


def simulate(
    given: argparse.Namespace, requests: Sequence[Request], pages: int, steps: Sequence[MeasuredStep]
) -> Line:
    cost = fit_cost(steps)
    print(pages, cost, f"fitted to {len(steps)} steps, mean error {100 * measure_fit(cost, steps):.1f} %")
    first_cores = [cores[0] for cores in divide_cores(find_cores(), given.replicas)]

    def slow_down(number: int, computing: Collection[int]) -> float:
        return sum(first_cores[each] == first_cores[number] for each in computing)

    shape = Shape(pages=pages, page_size=PAGE_SIZE, slots=SLOTS)
    arrivals = make_arrivals(given, requests)
    count, later = len(arrivals), 2 * arrivals[-1].at + WARM_UP_ENDS_S
    others = [replace(each, blocks=[OTHER_BLOCK + block for block in each.blocks]) for each in arrivals]
    arrivals = others + [replace(each, at=each.at + later) for each in arrivals]
    simulation = Simulation(shape, cost, arrivals, given.replicas, slowdown=slow_down)
    simulation.run()
    served, usage = simulation.served[count:], simulation.usage
    return describe_simulated(Figures.of(arrivals[count:], served, simulation.gaps_s, usage))


def make_arrivals(given: argparse.Namespace, requests: Sequence[Request]) -> list[Arrival]:
    times = choose_times(requests, given.rate)
    bodies = [make_body(request, given.max_prompt, "") for request in requests]
    return [
        Arrival(at, request.prompt, BLOCK, len(body["prompt"]), body["max_tokens"])
        for at, request, body in zip(times, requests, bodies, strict=True)
    ]


def describe_simulated(found: Figures) -> Line:
    first = found.ttft_s
    return (
        round(found.output_tokens_per_s, 1),
        round(100 * found.hit_share, 1),
        round(first.p50, 3),
        round(first.p99, 3),
    )


if __name__ == "__main__":
    main()
