"""Checks whether the same requests get the same tokens, and measures what `--deterministic` costs.

    PYTHONSAFEPATH=1 python bench/determinism.py [MODEL] --requests 500

Replays a mixed load in one order, in another with what the first left in the cache, in a third after a
restart from the disk tier, and some of it one request at a time outside of the cache. Each run is compared
token by token with the first, both with `--deterministic` and without it. Then both modes replay a load in
turns: the cost is the ratio of their tokens per second, and of their processes' CPU seconds per token.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from arbora import Engine

sys.path.append(str(Path(__file__).parent / "lib"))
from mixed_load import Answer, Ask, differing, mixed_load, replay, shuffled

MODES = (True, False)
TICKS = os.sysconf("SC_CLK_TCK")


def engine(model: str | None, dtype: str, deterministic: bool, **options: Any) -> Engine:
    return Engine(model, device="cpu", dtype=dtype, deterministic=deterministic, **options)


def runs(
    model: str | None, dtype: str, deterministic: bool, load: list[Ask], in_flight: int, alone: int
) -> dict[str, int]:
    """The number of requests that differ from the first run, by the name of the run."""
    count = len(load)
    outside = [Ask(ask.messages, ask.prompt, ask.sampling | {"cache_prompt": False}) for ask in load[:alone]]
    differ: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as directory:
        tiers: dict[str, Any] = {"disk_cache": directory, "host_cache": "64MiB", "max_running": in_flight}
        small: dict[str, Any] = {**tiers, "max_model_len": 2048, "kv_memory": "12MiB"} if not model else tiers
        with engine(model, dtype, deterministic, **small) as first:
            expected = replay(first, load, shuffled(count, 1), in_flight)
            again = replay(first, load, shuffled(count, 2), in_flight)
            single = replay(first, outside, range(alone), 1)
        with engine(model, dtype, deterministic, **small) as second:
            restarted = replay(second, load, shuffled(count, 3), in_flight)
    tokens = sum(len(answer.tokens) for answer in expected)
    print(f"{_name(deterministic)}, {dtype}: {tokens:,} tokens in each run", file=sys.stderr, flush=True)
    differ["another order, cached"] = len(differing(expected, again))
    differ["a third order, after a restart"] = len(differing(expected, restarted))
    differ[f"alone, uncached (of {alone})"] = len(differing(expected[:alone], single))
    return differ


def cost(
    model: str | None, dtype: str, load: list[Ask], rounds: int, in_flight: int, **options: Any
) -> list[tuple[float, float]]:
    """The ratios of deterministic to default for each round: tokens per second, CPU seconds per token."""
    ratios = []
    with (
        engine(model, dtype, True, **options) as deterministic,
        engine(model, dtype, False, **options) as default,
    ):
        models = {True: deterministic, False: default}
        for mode in MODES:
            replay(models[mode], load, range(len(load)), in_flight)
        for number in range(rounds):
            speeds, costs = {}, {}
            for mode in MODES if number % 2 else reversed(MODES):
                order = shuffled(len(load), number)
                speeds[mode], costs[mode] = timed(partial(replay, models[mode], load, order, in_flight))
            ratios.append((speeds[True] / speeds[False], costs[True] / costs[False]))
            print(f"round {number}: {speeds} tokens/s, {costs} CPU s/token", file=sys.stderr, flush=True)
    return ratios


def timed(run: Callable[[], list[Answer]]) -> tuple[float, float]:
    """The tokens per second, and the CPU seconds per token of the server's processes."""
    started, before = time.perf_counter(), cpu_seconds()
    tokens = sum(len(answer.tokens) for answer in run())
    return tokens / (time.perf_counter() - started), (cpu_seconds() - before) / tokens


def cpu_seconds() -> float:
    """The CPU seconds of all children of this process."""
    total = 0.0
    for task in Path("/proc/self/task").iterdir():
        for pid in (task / "children").read_text().split():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / TICKS
    return total


def _name(deterministic: bool) -> str:
    return "deterministic" if deterministic else "default"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", help="a directory or hub id (default: the built-in model)")
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--alone", type=int, default=100, help="requests to repeat one at a time")
    parser.add_argument("--in-flight", type=int, default=32)
    parser.add_argument("--dtypes", default="bfloat16", help="comma-separated (default: bfloat16)")
    parser.add_argument("--scale", type=int, default=2, help="length of the documents, in 100 tokens or so")
    parser.add_argument("--rounds", type=int, default=4, help="rounds for the cost; 0 leaves it out")
    parser.add_argument("--cost-requests", type=int, default=120)
    options = parser.parse_args()
    load = mixed_load(options.requests, scale=options.scale)
    for dtype in options.dtypes.split(",") if options.requests else ():
        for deterministic in MODES:
            differ = runs(options.model, dtype, deterministic, load, options.in_flight, options.alone)
            for name, number in differ.items():
                print(f"| {dtype} | {_name(deterministic)} | {name} | {number} differ |", flush=True)
    if options.rounds:
        dtype = options.dtypes.split(",")[0]
        part = mixed_load(options.cost_requests, seed=1, scale=options.scale)
        limits: dict[str, Any] = {"max_running": options.in_flight, "max_model_len": 2048}
        ratios = cost(options.model, dtype, part, options.rounds, options.in_flight, **limits)
        speed, cpu = (statistics.median(column) for column in zip(*ratios, strict=True))
        print(f"| {dtype} | cost | tokens/s × {speed:.2f} | CPU s/token × {cpu:.2f} |")


if __name__ == "__main__":
    main()
