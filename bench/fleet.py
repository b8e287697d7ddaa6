"""Real replicas of a model behind the router: hits and times to first token, and what the death of one costs.

    PYTHONSAFEPATH=1 python bench/fleet.py [MODEL] --replicas 3 --trace PATH
    PYTHONSAFEPATH=1 python bench/fleet.py [MODEL] --replicas 3 --kill 6

Starts two servers, one with the router's rule and one with round robin in its place, and replays the trace
against them in turn. A block of the trace is 16 tokens, and prompts are cut to --max-prompt; requests come at
random times, the same in each round. Without --trace, conversations are generated. Prints a line for each
round, and for each rule the round with the middle p99.

With --kill, clients ask the same requests again and again, half of them as streams, greedy and seeded, whose
texts are known. Meanwhile the model process of a random replica is killed, the given number of times. Prints
how the requests ended: each must be whole, with the text that it has without deaths.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import httpx
import psutil

sys.path.append(str(Path(__file__).parent / "lib"))
from compared_servers import ServerCommand
from fault_load import FaultLoad
from replayed_trace import Replay, replay
from reports import percentile, table
from server_process import ServerProcess, exit_on_sigterm, processes_by_role
from traces import Request, Source, conversations, read_trace

ARBORA, ROUND_ROBIN = "arbora", "round robin"
GENERATED_BLOCKS = 4000
"""the cache for which conversations are generated, in blocks"""
UP_WITHIN_S = 120.0


class Line(NamedTuple):
    """A round in the table, by the names of its columns."""

    rule: str
    hit_percent: float
    first_token_p50_s: float
    first_token_p99_s: float
    failed: int
    cpu_s: int


def main() -> None:
    exit_on_sigterm()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", nargs="?", default="arbora-builtin")
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--trace", type=Path, help="requests in Mooncake's format")
    parser.add_argument("--skip", type=int, default=0, help="first requests of the trace to leave out")
    parser.add_argument("--requests", type=int, default=300, help="of each round")
    parser.add_argument("--rate", type=float, default=4.0, help="requests a second")
    parser.add_argument("--rounds", type=int, default=3, help="with each rule")
    parser.add_argument("--max-prompt", type=int, default=4000, help="tokens")
    parser.add_argument("--kv-memory", default="64MiB", help="of each replica")
    parser.add_argument("--kill", type=int, metavar="TIMES", help="kill model processes instead")
    parser.add_argument("--clients", type=int, default=12, help="with --kill: requests at a time")
    given = parser.parse_args()
    if given.kill is None:
        asyncio.run(compare(given, choose_requests(given)))
    else:
        asyncio.run(kill(given))


def choose_requests(given: argparse.Namespace) -> Sequence[Request]:
    end = given.skip + given.requests
    if given.trace is not None:
        return read_trace(given.trace)[given.skip : end]
    prompts = islice(conversations(Source(GENERATED_BLOCKS, 1)), given.skip, end)
    return [Request(prompt, 64) for prompt in prompts]


def start(rule: str, given: argparse.Namespace, logs: Path, *flags: str) -> ServerProcess:
    """Starts a server whose requests are routed by the rule."""
    other = str(Path(__file__).parent / "lib" / "rule_server.py")
    program = ("-m", "arbora") if rule == ARBORA else (other,)
    options = ("--replicas", str(given.replicas), "--kv-memory", given.kv_memory, *flags)
    command = [sys.executable, *program, "serve", given.model, *options]
    return ServerProcess(ServerCommand(rule, command, {"PYTHONSAFEPATH": "1"}), logs / rule)


async def compare(given: argparse.Namespace, requests: Sequence[Request]) -> None:
    rounds: dict[str, list[Line]] = {ARBORA: [], ROUND_ROBIN: []}
    with (
        tempfile.TemporaryDirectory() as logs,
        start(ARBORA, given, Path(logs)) as arbora,
        start(ROUND_ROBIN, given, Path(logs)) as other,
    ):
        servers = {ARBORA: arbora, ROUND_ROBIN: other}
        for server in servers.values():
            await replay(server.url, requests[:20], given.rate, given.max_prompt, "warm-up")
        for number in range(given.rounds):
            for rule in sorted(servers, reverse=bool(number % 2)):
                rounds[rule].append(await measure(rule, servers[rule], given, requests, str(number)))
                print(*rounds[rule][-1], sep="\t", flush=True)
    lines = [sorted(each, key=lambda line: line.first_token_p99_s) for each in rounds.values()]
    print(table(Line._fields, (each[len(each) // 2] for each in lines)))


async def measure(
    rule: str, server: ServerProcess, given: argparse.Namespace, requests: Sequence[Request], salt: str
) -> Line:
    """Replays the requests against an empty cache."""
    httpx.delete(f"{server.url}/cache", timeout=60).raise_for_status()
    before = sum_cpu_seconds(server)
    found: Replay = await replay(server.url, requests, given.rate, given.max_prompt, salt)
    hits = 100 * found.cached_tokens / max(1, found.prompt_tokens)
    times = found.first_token_s
    spent = round(sum_cpu_seconds(server) - before)
    return Line(rule, round(hits, 1), percentile(times, 50), percentile(times, 99), found.failed, spent)


def sum_cpu_seconds(server: ServerProcess) -> float:
    """The processor time of the server's processes."""
    return sum(sum(each.cpu_times()[:2]) for each in processes_by_role(server.pid).values())


async def kill(given: argparse.Namespace) -> None:
    with (
        tempfile.TemporaryDirectory() as logs,
        start(ARBORA, given, Path(logs), "--dtype", "float32") as server,
    ):
        load = FaultLoad(server.url, given.clients)
        await load.learn()
        load.start()
        source, down_s, unhealthy = random.Random(1), list[float](), 0
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
            for _ in range(given.kill):
                await asyncio.sleep(source.uniform(1.0, 3.0))
                models = find_models(server)
                models[source.randrange(len(models))].kill()
                began = time.monotonic()
                while await count_up(http) < given.replicas or len(find_models(server)) < given.replicas:
                    unhealthy += (await http.get("/health")).status_code != 200
                    assert time.monotonic() < began + UP_WITHIN_S, "the replica did not start again"
                    await asyncio.sleep(0.1)
                down_s.append(time.monotonic() - began)
        await load.stop()
    print(f"killed {given.kill} times, up again after {statistics.median(down_s):.1f} s (median)")
    print(f"/health not 200: {unhealthy} times")
    for kind, ends in load.ends.items():
        print(f"{kind}: {ends.total()} requests:", ", ".join(f"{count} {end}" for end, count in ends.items()))
    print(*load.wrong, sep="\n")


def find_models(server: ServerProcess) -> list[psutil.Process]:
    found = processes_by_role(server.pid)
    return [process for role, process in found.items() if role.split()[0] == "model"]


async def count_up(http: httpx.AsyncClient) -> int:
    """How many replicas answer."""
    return int((await http.get("/server")).json()["replicas_up"])


if __name__ == "__main__":
    main()
