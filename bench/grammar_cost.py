"""Measures the cost of a grammar: equally many tokens are generated with a schema and without one.

    python bench/grammar_cost.py --url http://127.0.0.1:8000 --runs 5

A run asks for 24 replies by 6 schemas, then for 24 free replies to similar new prompts. The k-th free reply
has as many tokens as the k-th reply with a schema. Every other run begins with the free replies, with the
lengths of the run before. The first run, in which the grammars are compiled, is printed but not counted.

It needs a server that runs.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent / "lib"))
from arbora.frontend.cli.bench.client import Client, Reply
from workloads import Workload, World, json_schema, replies_without_schema


async def timed(url: str, seed: str, in_flight: int, workload: Workload) -> tuple[list[Reply], float]:
    """The replies, and output tokens per second."""
    client = Client(url)
    await client.open()
    world = World(client, seed, in_flight)
    await world.calibrate()
    started = time.perf_counter()
    replies = await workload(world)
    seconds = time.perf_counter() - started
    await client.close()
    for reply in replies:
        if reply.error is not None:
            raise SystemExit(f"a request failed: {reply.error}")
    return replies, sum(reply.output_tokens for reply in replies) / seconds


async def measure(url: str, runs: int, in_flight: int) -> list[tuple[float, float]]:
    """The tokens per second with a schema and without one, for each run."""
    rates = []
    lengths: list[int] = []

    async def with_schema(run: int) -> float:
        replies, rate = await timed(url, f"schema {run}", in_flight, json_schema)
        lengths[:] = [reply.output_tokens for reply in replies]
        return rate

    async def without(run: int) -> float:
        return (await timed(url, f"free {run}", in_flight, replies_without_schema(lengths)))[1]

    for run in range(runs + 1):
        if run % 2:
            free = await without(run)
            schema = await with_schema(run)
        else:
            schema = await with_schema(run)
            free = await without(run)
        rates.append((schema, free))
        print(f"run {run}: {schema:8.1f} tok/s with a schema {free:8.1f} without {schema / free:6.2f}")
    return rates


def summary(rates: list[tuple[float, float]]) -> dict[str, Any]:
    schema, free = zip(*rates, strict=True)
    ratios = [with_schema / without for with_schema, without in rates]
    return {
        "tok_per_s_with_schema": round(statistics.median(schema), 1),
        "tok_per_s_without": round(statistics.median(free), 1),
        "ratio": round(statistics.median(ratios), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--in-flight", type=int, default=4, help="requests in flight (default: 4)")
    options = parser.parse_args()
    rates = asyncio.run(measure(options.url, options.runs, options.in_flight))
    print(summary(rates[1:]))


if __name__ == "__main__":
    main()
