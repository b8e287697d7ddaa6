"""Load generator for any OpenAI-compatible server.

    python bench/serve.py --url http://127.0.0.1:8000 --workloads chat,rag --runs 3 --output runs.jsonl

Prints a table; `--output` appends a JSON line for each run. Times are those of the client, in milliseconds.
`cached` is the share of prompt tokens that the server reports as cached; `itl_tail` is `itl_p99` ÷ `itl_p50`.

It needs a server that runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

sys.path.append(str(Path(__file__).parent / "lib"))
from arbora.frontend.cli.bench.client import Client
from arbora.frontend.cli.bench.figures import figures
from arbora.runtime.errors import ConfigError
from workloads import WORKLOADS, World

COLUMNS = [
    "workload",
    "requests",
    "errors",
    "output_tokens",
    "tok_per_s",
    "prompt_tok_per_s",
    "req_per_s",
    "ttft_p50",
    "ttft_p90",
    "itl_p50",
    "itl_p99",
    "itl_tail",
    "e2e_p50",
    "cached",
]


async def run_workload(
    url: str, name: str, seed: int, in_flight: int, api_key: str = "none"
) -> dict[str, Any]:
    """One run of one workload. Each workload and seed has its own texts, so nothing is cached before."""
    client = Client(url, api_key)
    await client.open()
    world = World(client, f"{name} {seed}", in_flight)
    await world.calibrate()
    started = time.perf_counter()
    replies = await WORKLOADS[name](world)
    elapsed = time.perf_counter() - started
    await client.close()
    for reply in replies:
        if reply.error is not None:
            print(f"error: {reply.error}", file=sys.stderr)
    found = msgspec.structs.asdict(figures(replies, elapsed))
    return {"workload": name, "seed": seed, "seconds": round(elapsed, 3), **found}


def median(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of the runs for each column."""
    merged: dict[str, Any] = {"workload": runs[0]["workload"]}
    for column in COLUMNS[1:]:
        values = [run[column] for run in runs if run[column] is not None]
        merged[column] = statistics.median(values) if values else None
    return merged


def table(rows: list[dict[str, Any]]) -> str:
    cells = [COLUMNS, *([str(row[column]) for column in COLUMNS] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="comma-separated (default: all)")
    parser.add_argument("--runs", type=int, default=1, help="runs of each workload; the table has medians")
    parser.add_argument("--in-flight", type=int, default=4, help="requests in flight (default: 4)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="append a JSON line for each run to this file")
    options = parser.parse_args()
    names = options.workloads.split(",")
    unknown = [name for name in names if name not in WORKLOADS]
    if unknown:
        parser.error(f"--workloads: unknown {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    rows = []
    for name in names:
        runs = []
        for run in range(options.runs):
            seed = options.seed + run
            try:
                done = asyncio.run(run_workload(options.url, name, seed, options.in_flight, options.api_key))
            except ConfigError as error:
                advice = "In the repository: `make serve`, and for another server `make bench URL=…`."
                raise SystemExit(f"{error} {advice}") from None
            runs.append(done)
            if options.output:
                with options.output.open("a") as file:
                    file.write(json.dumps(runs[-1]) + "\n")
        rows.append(median(runs))
    print(table(rows))


if __name__ == "__main__":
    main()
