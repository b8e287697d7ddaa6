"""Measures the time to the first token when the prefix is computed, cached, or restored from a slower tier.

    PYTHONSAFEPATH=1 python bench/tiers.py [MODEL] --tokens 1500 --rounds 3 [--remote-cache URL]

The KV cache fits one context, so each prompt evicts the one before it. Rows: computed; found in the
KV cache; restored from host memory; restored by a newly started server from disk, and from a remote server if
one is named. Figures are medians of the rounds in milliseconds, and their share of the time to compute.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from arbora import Engine

Times = dict[str, list[float]]


def prompt_of(tokens: int, seed: int) -> list[int]:
    """Token ids that every vocabulary has and that are unlikely to be special."""
    generator = random.Random(seed)
    return [generator.randrange(260, 900) for _ in range(tokens)]


def first_token_ms(engine: Engine, prompt: list[int], cached: bool) -> float:
    started = time.perf_counter()
    completion = engine.generate(prompt, max_tokens=1, temperature=0.0, ignore_eos=True)
    elapsed = (time.perf_counter() - started) * 1000
    assert (completion.usage.cached_tokens > len(prompt) * 0.9) == cached, completion.usage
    return elapsed


def warm_up(engine: Engine, prompt: list[int], cached: bool) -> None:
    """Sends a request, and waits for the grammar compiler, which keeps a core busy while a server starts."""
    engine.generate(prompt[:8], json_schema={"type": "integer"}, property_order="any", max_tokens=4)
    first_token_ms(engine, prompt, cached)


def measure(model: str | None, tokens: int, rounds: int, remote: str | None) -> Times:
    """The milliseconds to the first token, by the tier of the prefix."""
    times: Times = defaultdict(list)
    with tempfile.TemporaryDirectory() as directory:
        options: Any = {"max_model_len": tokens + 64, "max_running": 1, "host_cache": "4GiB"}
        with Engine(model, disk_cache=directory, remote_cache=remote or "", **options) as engine:
            warm_up(engine, prompt_of(tokens, rounds), cached=False)
            for seed in range(rounds):
                times["computed"].append(first_token_ms(engine, prompt_of(tokens, seed), cached=False))
                times["cached"].append(first_token_ms(engine, prompt_of(tokens, seed), cached=True))
            for seed in range(rounds):
                times["host"].append(first_token_ms(engine, prompt_of(tokens, seed), cached=True))
        restarts: dict[str, Any] = {"disk": {"disk_cache": directory}}
        if remote:
            restarts["remote"] = {"remote_cache": remote}
        for way, tier in restarts.items():
            with Engine(model, **options, **tier) as engine:
                warm_up(engine, prompt_of(tokens, rounds), cached=True)
                for seed in range(rounds):
                    times[way].append(first_token_ms(engine, prompt_of(tokens, seed), cached=True))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--remote-cache", metavar="URL", help="of an empty Valkey or Redis server")
    arguments = parser.parse_args()
    model = str(arguments.model) if arguments.model else None
    times = measure(model, arguments.tokens, arguments.rounds, arguments.remote_cache)
    computed = median(times["computed"])
    print(f"{arguments.tokens} prompt tokens, {arguments.rounds} rounds")
    for way, taken in times.items():
        print(f"{way:>9} {median(taken):10.1f} ms {median(taken) / computed:8.3f}")


if __name__ == "__main__":
    main()
