"""What Ray Serve adds to a streamed chunk: the same streams from `arbora serve` and from Ray Serve, in turns.

    PYTHONSAFEPATH=1 python bench/ray_overhead.py [MODEL]
    unshare -rn sh -c 'ip link set lo up; PYTHONSAFEPATH=1 python bench/ray_overhead.py --haproxy'

With --haproxy, Serve's proxy is HAProxy, which listens on all interfaces: so run it in a network namespace as
above. Prints a line for each server and number of streams at a time: milliseconds to the first chunk and
between chunks (median of the streams), and milliseconds of CPU a chunk in all processes, without what these
take when idle.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import httpx
import psutil

sys.path.append(str(Path(__file__).parent / "lib"))
from reports import machine, table

ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray listens on the loopback address only
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_TOKEN": os.urandom(24).hex(),
    "OMP_NUM_THREADS": "1",
}
PORTS = {"arbora serve": 18731, "Ray Serve": 18732}
START_SECONDS = 180.0
IDLE_SECONDS = 5.0


class Line(NamedTuple):
    server: str
    streams: int
    first_ms: float
    chunk_ms: float
    cpu_ms_a_chunk: float
    idle_cpu_percent: float


class Server:
    def __init__(self, name: str, command: Sequence[str], extra: dict[str, str]) -> None:
        self.name = name
        self.url = f"http://127.0.0.1:{PORTS[name]}"
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **ENVIRONMENT, **extra},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def wait(self) -> None:
        """Waits until it serves."""
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                if httpx.get(f"{self.url}/health").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            if self._process.poll() is not None or time.monotonic() > end:
                sys.exit(f"{self.name} did not start")
            time.sleep(0.5)

    def cpu_s(self) -> float:
        """The CPU seconds of all its processes."""
        process = psutil.Process(self._process.pid)
        total = 0.0
        for each in [process, *process.children(recursive=True)]:
            try:
                times = each.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system
        return total

    def close(self) -> None:
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)


async def stream(client: httpx.AsyncClient, tokens: int) -> list[float]:
    """The times of a stream's start and of its chunks."""
    body = {
        "prompt": f"{os.urandom(4).hex()} A story:",
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
    }
    times = [time.perf_counter()]
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        answer.raise_for_status()
        return times + [
            time.perf_counter() async for line in answer.aiter_lines() if line.startswith("data: {")
        ]


async def measure(server: Server, streams: int, tokens: int) -> Line:
    before = server.cpu_s()
    await asyncio.sleep(IDLE_SECONDS)
    idle = (server.cpu_s() - before) / IDLE_SECONDS
    async with httpx.AsyncClient(base_url=server.url, timeout=120) as client:
        await asyncio.gather(*(stream(client, 20) for _ in range(streams)))
        before, began = server.cpu_s(), time.perf_counter()
        found = await asyncio.gather(*(stream(client, tokens) for _ in range(streams)))
        cpu = server.cpu_s() - before - idle * (time.perf_counter() - began)
    return Line(
        server.name,
        streams,
        1000 * statistics.median(times[1] - times[0] for times in found),
        1000 * statistics.median((times[-1] - times[1]) / (len(times) - 2) for times in found),
        1000 * cpu / sum(len(times) - 1 for times in found),
        100 * idle,
    )


def _shorten(line: Line) -> list[object]:
    return [f"{value:.2f}" if isinstance(value, float) else value for value in line]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", nargs="?", help="default: the built-in one")
    parser.add_argument("--tokens", type=int, default=400, help="of each stream")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--haproxy", action="store_true")
    given = parser.parse_args()
    models = [given.model] if given.model else []
    extra = {"RAY_SERVE_ENABLE_HA_PROXY": "1"} if given.haproxy else {}
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "serve.yaml"  # JSON is YAML
        model: dict[str, object] = {"name": "model", **({"model": given.model} if given.model else {})}
        application = {"import_path": "arbora.frontend.ray_serve:build_app", "args": {"models": [model]}}
        http = {"host": "127.0.0.1", "port": PORTS["Ray Serve"]}
        config.write_text(json.dumps({"http_options": http, "applications": [application]}))
        port = str(PORTS["arbora serve"])
        plain = [sys.executable, "-m", "arbora", "serve", *models, "--port", port, "--log-requests", "off"]
        run = [str(Path(sys.executable).with_name("serve")), "run", str(config)]
        servers = [Server("arbora serve", plain, {}), Server("Ray Serve", run, extra)]
        try:
            for server in servers:
                server.wait()
            print(machine(), flush=True)
            for streams in (1, 8):
                lines = [
                    asyncio.run(measure(server, streams, given.tokens))
                    for _ in range(given.rounds)
                    for server in servers
                ]
                print(table(Line._fields, [_shorten(line) for line in lines]), flush=True)
        finally:
            for server in servers:
                server.close()


if __name__ == "__main__":
    main()
