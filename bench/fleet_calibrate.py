"""Compares simulated replicas with real ones on the same requests: throughput, hits, times to first token.

    PYTHONSAFEPATH=1 python bench/fleet_calibrate.py MODEL --trace PATH --replicas 3 --rate 2

Measures steps of the model on the cores of one replica, and fits their cost as `arbora plan --fleet --steps`
does. Then it starts a server with as many replicas, and replays the trace as `fleet.py` does: a block of the
trace is 16 tokens, and prompts are cut to --max-prompt. The simulation gets the same requests at the same
times. Replicas that share cores slow each other: each of their steps takes as many times longer as replicas
compute on its cores when it begins. Prints the median of the rounds beside the simulation, and their ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

import httpx
from arbora.frontend.fleet.figures import Figures
from arbora.frontend.fleet.replica import Shape
from arbora.frontend.fleet.simulation import Simulation
from arbora.frontend.fleet.step_cost import fit_cost, measure_fit, read_steps
from arbora.frontend.fleet.workload import Arrival
from arbora.frontend.launch.placement import divide_cores
from arbora.runtime.system_cores import find_cores

sys.path.append(str(Path(__file__).parent / "lib"))
from compared_servers import ServerCommand
from replayed_trace import BLOCK, Replay, choose_times, make_body, replay
from reports import machine, percentile, table
from server_process import ServerProcess, exit_on_sigterm
from traces import Request, read_trace

PAGE_SIZE = 16
SLOTS = 64
DECODE, CHUNKS, KEYS = "0,1,2,4,8", "0,16,64,256", (100, 1000)
"""kinds of measured steps"""
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
    parser.add_argument("--kv-memory", default="128MiB", help="of each replica")
    parser.add_argument("--steps", type=Path, help="measured steps of an earlier run")
    given = parser.parse_args()
    requests = read_trace(given.trace)[given.skip : given.skip + given.requests]
    with tempfile.TemporaryDirectory() as directory:
        steps = given.steps or measure_steps(given, Path(directory) / "steps")
        pages, real = asyncio.run(serve(given, requests, Path(directory)))
        simulated = simulate(given, requests, pages, steps)
    middle = [statistics.median(column) for column in zip(*real, strict=True)]
    ratios = [round(found / true, 2) for found, true in zip(simulated, middle, strict=True)]
    print(machine())
    rows = [("real, " + str(number + 1), *line) for number, line in enumerate(real)]
    print(table(("", *COLUMNS), [*rows, ("simulated", *simulated), ("simulated ÷ median", *ratios)]))


def measure_steps(given: argparse.Namespace, path: Path) -> Path:
    """Measures steps on the cores of the first replica."""
    cores = divide_cores(find_cores(), given.replicas)[0]
    bound = ["taskset", "-c", ",".join(str(cpu) for core in cores for cpu in core.cpus)]
    program = [sys.executable, str(Path(__file__).with_name("steps.py")), given.model]
    for keys in KEYS:
        kinds = ["--decode", DECODE, "--chunk", CHUNKS, "--keys", str(keys), "--json", str(path)]
        options = ["--", "--page-size", str(PAGE_SIZE), "--kv-memory", given.kv_memory]
        subprocess.run([*bound, *program, *kinds, *options], check=True, stdout=subprocess.DEVNULL)
    return path


async def serve(
    given: argparse.Namespace, requests: Sequence[Request], directory: Path
) -> tuple[int, list[Line]]:
    """Returns the pages of a replica, and the figures of each round."""
    options = {
        "replicas": given.replicas,
        "kv-memory": given.kv_memory,
        "page-size": PAGE_SIZE,
        "max-running": SLOTS,
        "speculate": "off",
    }
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "arbora", "serve", given.model, *flags]
    rounds = []
    server = ServerCommand("arbora", command, {"PYTHONSAFEPATH": "1"})
    with ServerProcess(server, directory / "log") as running:
        told = httpx.get(f"{running.url}/server", timeout=60).raise_for_status().json()
        await replay(running.url, requests[:20], given.rate, given.max_prompt, "warm-up")
        for number in range(given.rounds):
            httpx.delete(f"{running.url}/cache", timeout=60).raise_for_status()
            found = await replay(running.url, requests, given.rate, given.max_prompt, str(number))
            assert not found.failed, f"{found.failed} requests failed"
            rounds.append(describe_real(found))
            print(*rounds[-1], sep="\t", flush=True)
    return told["pages"][0]["total"] // given.replicas, rounds


def describe_real(found: Replay) -> Line:
    times = found.first_token_s
    rate, hits = found.output_tokens / found.seconds, 100 * found.cached_tokens / found.prompt_tokens
    return round(rate, 1), round(hits, 1), percentile(times, 50), percentile(times, 99)


def simulate(given: argparse.Namespace, requests: Sequence[Request], pages: int, path: Path) -> Line:
    steps = read_steps(path)
    cost = fit_cost(steps)
    print(cost, f"mean error {100 * measure_fit(cost, steps):.1f} %")
    first_cores = [cores[0] for cores in divide_cores(find_cores(), given.replicas)]

    def slow_down(number: int, computing: Collection[int]) -> float:
        return sum(first_cores[each] == first_cores[number] for each in computing)

    shape = Shape(pages=pages, page_size=PAGE_SIZE, slots=SLOTS)
    arrivals = make_arrivals(given, requests)
    found = Simulation(shape, cost, arrivals, given.replicas, slowdown=slow_down).run()
    return describe_simulated(found)


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
