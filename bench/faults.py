"""Kills, stops and starves each process of a server under load: which requests are lost, and for how long.

    python bench/faults.py --times 10 --out faults.md

Starts `arbora serve` with the built-in model, a disk tier and, where redis-server is installed, a remote
cache. Clients always send requests: streams, whole answers, schemas. Every request has one right text. Each
fault is followed until all open requests have ended, and clients repeat the failed ones. A request is
lost if neither it nor its repetition was answered, or if the text was wrong. A server has recovered when
/health is 200, the process is another one if it had to be replaced, and a request is answered.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

sys.path.append(str(Path(__file__).parent / "lib"))
from fault_kinds import FAULTS, REDIS_FAULTS, Fault, World
from fault_load import Ask, FaultLoad
from reports import commit, date, machine, percentile, table
from rest_check import wrong_at_rest
from server_process import (
    MAIN_ROLES,
    ServerProcess,
    exit_on_sigterm,
    main_pids,
    processes_by_role,
    serve_arbora,
)

HEALTHY_WITHIN_S = 120.0
ENDED_WITHIN_S = 5.0  # after the server has ended, for child processes that the system then ends
STARVED_S = 4.0  # the duration of a fault that replaces no process
REDIS_PORT = 16399
SERVER = (
    *("--dtype", "float32", "--kv-memory", "16MiB", "--host-cache", "8MiB"),
    *("--debug", "invariants"),
)


@dataclass
class Tried:
    """The results of all tries of one fault."""

    recovered_s: list[float] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    answered_again: int = 0
    open: int = 0
    wrong_after: list[str] = field(default_factory=list)


class Trial:
    def __init__(self, world: World, server: ServerProcess, load: FaultLoad, times: int) -> None:
        self._world = world
        self._server = server
        self._load = load
        self._times = times

    async def of(self, fault: Fault) -> Tried:
        tried = Tried()
        self._load.start()
        async with httpx.AsyncClient(base_url=self._server.url) as http:
            for _ in range(self._times):
                await self._healthy(http, None, {})
                await asyncio.sleep(self._world.rng.uniform(1.0, 3.0))
                await self._once(http, fault, tried)
        await self._load.stop()
        tried.wrong_after = await asyncio.to_thread(wrong_at_rest, self._server.url, 30.0)
        return tried

    async def _once(self, http: httpx.AsyncClient, fault: Fault, tried: Tried) -> None:
        pids = main_pids(self._server.pid)
        while not self._load.open:
            await asyncio.sleep(0.01)
        followed = set(self._load.open)
        began = time.monotonic()
        undo = fault.do(self._world)
        try:
            if fault.replaces is None:
                await asyncio.sleep(STARVED_S)
            else:
                await self._healthy(http, fault.replaces, pids)
        finally:
            undo()
        if fault.replaces is None:
            began = time.monotonic()  # the time of recovery is counted from the end of the fault
            await self._healthy(http, None, pids)
        tried.recovered_s.append(time.monotonic() - began)
        for ask in followed:
            await ask.done.wait()
            self._count(ask, tried)

    def _count(self, ask: Ask, tried: Tried) -> None:
        tried.open += 1
        tried.ends[ask.end] += 1
        if ask.end != "whole" and ask.retried == "whole":
            tried.answered_again += 1
        if "wrong" in (ask.end, ask.retried) or ask.retried != "whole":
            tried.lost.append(f"{ask.end}, again {ask.retried}: {ask.detail}")

    async def _healthy(self, http: httpx.AsyncClient, replaced: str | None, pids: dict[str, int]) -> None:
        deadline = time.monotonic() + HEALTHY_WITHIN_S
        while time.monotonic() < deadline:
            now = main_pids(self._server.pid)
            is_new = replaced is None or now.get(replaced, pids[replaced]) != pids[replaced]
            if is_new and len(now) >= len(MAIN_ROLES) and await self._load.probe(http):
                return
            await asyncio.sleep(0.05)
        print(
            f"not healthy within {HEALTHY_WITHIN_S:g} s: {pids} → {main_pids(self._server.pid)}", flush=True
        )


@contextlib.contextmanager
def redis_server(directory: Path) -> Iterator[subprocess.Popen[bytes] | None]:
    """A Redis server of our own, if one is installed."""
    command = shutil.which("redis-server") or shutil.which("valkey-server")
    if command is None:
        yield None
        return
    options = ["--port", str(REDIS_PORT), "--bind", "127.0.0.1", "--save", "", "--dir", str(directory)]
    process = subprocess.Popen(
        [command, *options, "--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"],
        stdout=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def row(fault: Fault, tried: Tried) -> tuple[object, ...]:
    return (
        fault.name,
        len(tried.recovered_s),
        tried.open,
        *(tried.ends[end] for end in ("whole", "error", "refused", "cut", "silent")),
        tried.answered_again,
        len(tried.lost),
        f"{percentile(tried.recovered_s, 50):.1f} s",
        f"{max(tried.recovered_s, default=0.0):.1f} s",
        "all back" if not tried.wrong_after else "; ".join(tried.wrong_after),
    )


HEADINGS = (
    *("fault", "times", "open then", "whole answer", "error event", "503 or refused", "cut", "silent"),
    *("whole when asked again", "lost", "recovered p50", "max", "pages and requests after"),
)


def report(options: argparse.Namespace, rows: list[tuple[object, ...]], notes: list[str]) -> str:
    return "\n\n".join(
        [
            f"# Faults, {date()}",
            f"{machine()}. Commit {commit()}.",
            f"    python bench/faults.py {' '.join(sys.argv[1:])}",
            f"{options.clients} clients ask all the time. A fault that need not replace a process lasts "
            f"{STARVED_S:g} s, and recovery is counted from its end.",
            table(HEADINGS, rows),
            "\n".join(f"- {note}" for note in notes) or "Nothing was lost, and no text was wrong.",
        ]
    )


async def run(options: argparse.Namespace, world: World, server: ServerProcess) -> bool:
    load = FaultLoad(server.url, options.clients)
    await load.learn()
    trial = Trial(world, server, load, options.times)
    rows, notes = [], []
    for fault in (*FAULTS, *(REDIS_FAULTS if world.redis else ())):
        if options.only and options.only not in fault.name:
            continue
        tried = await trial.of(fault)
        rows.append(row(fault, tried))
        notes += [f"{fault.name}: {note}" for note in tried.lost]
        print(table(HEADINGS, rows[-1:]).splitlines()[-1], flush=True)
        options.out.write_text(report(options, rows, notes) + "\n")
    return not notes


def main() -> None:
    exit_on_sigterm()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--only", default="", help="faults whose name has this in it")
    parser.add_argument("--out", type=Path, default=Path("faults.md"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, redis_server(Path(directory)) as redis:
        disk = Path(directory) / "disk"
        remote = ("--remote-cache", f"redis://127.0.0.1:{REDIS_PORT}/0") if redis else ()
        log = options.out.with_suffix(".log")
        with serve_arbora(log, *SERVER, "--disk-cache", f"{disk},64MiB", *remote) as server:
            well = asyncio.run(run(options, World(server.pid, disk, redis, random.Random(0)), server))
            started = list(processes_by_role(server.pid).values())
    _, alive = psutil.wait_procs(started, timeout=ENDED_WITHIN_S)
    orphans = [process.pid for process in alive]
    print(f"processes that outlived the server: {orphans or 'none'}")
    print(options.out.read_text())
    sys.exit(0 if well and not orphans else 1)


if __name__ == "__main__":
    main()
