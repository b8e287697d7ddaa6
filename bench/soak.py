"""A soak test: hours of mixed, ordinary traffic, in which every answer is checked and every process measured.

    python bench/soak.py --minutes 120 --clients 4 --out soak.md

Starts `arbora serve` with the built-in model in float32, three isolated keys, a small KV cache and caches
in host memory and on disk, so that pages are evicted and restored all the time. With `--url` it loads a
server that already runs on this machine. Every ten minutes it writes the numbers of requests and what each
process uses. At the end no request may be open, every page must be free or cached, and no process replaced.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

sys.path += [str(Path(__file__).parent / "lib"), str(Path(__file__).parents[1] / "tests" / "support")]
from hostile_run import corpus, send_corpus
from process_figures import Sample, sample_processes
from reports import commit, date, machine, table
from rest_check import tracebacks, wrong_at_rest
from server_process import exit_on_sigterm, main_pids, serve_arbora, server_of
from soak_report import Row, process_table, slope_per_hour, traffic_table
from soak_traffic import Tally, Traffic

HOSTILE_SHARE = 0.5  # of the full size of the hostile bodies
HOSTILE_DEPTHS = (300, 4_000, 50_000)
HOSTILE_WITHIN_S = 60.0

KEYS = ["soak-a", "soak-b", "soak-c"]
HOSTILE_KEY = "soak-hostile"
SAMPLE_EVERY_S = 10.0
ROW_EVERY_S = 600.0
SERVER = (
    *("--dtype", "float32", "--kv-memory", "32MiB", "--pin-memory", "8MiB", "--host-cache", "32MiB"),
    *("--isolate", "keys", "--debug", "invariants"),
)


class Soak:
    """One run: the clients, the sampling of processes, and the report, which grows during the run."""

    def __init__(self, options: argparse.Namespace, url: str, supervisor: int, command: str) -> None:
        self._options = options
        self._url = url
        self._supervisor = supervisor
        self._command = command
        self._traffic = Traffic(url, KEYS if options.url is None else options.api_key)
        self._started = time.monotonic()
        self._samples: dict[str, list[Sample]] = {}
        self._rows: list[Row] = []
        self._cpu_at_row = _cpu_seconds(sample_processes(supervisor, 0.0))
        self._row_began = 0.0
        self._pids = main_pids(supervisor)
        self._replaced: list[str] = []

    async def run(self) -> bool:
        """Runs the traffic. Returns whether nothing was lost."""
        end = time.monotonic() + 60 * self._options.minutes
        measuring = asyncio.create_task(self._measure())
        clients = [self._client(number, end) for number in range(self._options.clients)]
        if self._options.hostile:
            clients.append(self._hostile_client(end))
        await asyncio.gather(*clients)
        measuring.cancel()
        verdict = await self._verdict()
        self._take_row()
        self._write(verdict)
        await self._traffic.close()
        return not (verdict or self._traffic.failures or self._replaced)

    async def _client(self, number: int, end: float) -> None:
        rng = random.Random(f"{self._options.seed} {number}")
        while time.monotonic() < end:
            await self._traffic.act(rng)
            await asyncio.sleep(rng.expovariate(1 / self._options.pause) if self._options.pause else 0)

    async def _hostile_client(self, end: float) -> None:
        """Sends the hostile corpus repeatedly, with its own key."""
        while time.monotonic() < end:
            for name, case in corpus(HOSTILE_SHARE, HOSTILE_DEPTHS):
                [found] = await send_corpus(self._url, [(name, case)], 1, HOSTILE_WITHIN_S, HOSTILE_KEY)
                self._traffic.take_hostile(name, found.answer.status if found.answer else 0)
                await asyncio.sleep(self._options.pause)
                if time.monotonic() > end:
                    break

    async def _measure(self) -> None:
        while True:
            found = sample_processes(self._supervisor, self._seconds)
            for role, sample in found.items():
                self._samples.setdefault(role, []).append(sample)
            self._note_replaced()
            with self._options.out.with_suffix(".jsonl").open("a") as file:
                file.write(json.dumps({role: asdict(sample) for role, sample in found.items()}) + "\n")
            if self._seconds - self._row_began >= ROW_EVERY_S:
                self._take_row()
                self._write(["the run goes on"])
            await asyncio.sleep(SAMPLE_EVERY_S)

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._started

    def _note_replaced(self) -> None:
        pids = main_pids(self._supervisor)
        if pids != self._pids:
            self._replaced.append(f"minute {self._seconds / 60:.1f}: {self._pids} became {pids}")
            self._pids = pids

    def _take_row(self) -> None:
        usage = sample_processes(self._supervisor, self._seconds)
        used = _cpu_seconds(usage)
        share = (used - self._cpu_at_row) / max(self._seconds - self._row_began, 1e-9)
        self._rows.append(Row(self._seconds / 60, self._traffic.tally, share, usage))
        self._cpu_at_row, self._row_began = used, self._seconds
        self._traffic.tally = Tally()

    async def _verdict(self) -> list[str]:
        """The errors found after the traffic has ended."""
        in_log = [] if self._options.url else tracebacks(self._options.log)
        return await asyncio.to_thread(wrong_at_rest, self._url) + in_log

    def _write(self, verdict: list[str]) -> None:
        half = self._seconds / 2
        growth = [
            (role, f"{slope_per_hour([sample for sample in samples if sample.seconds >= half]):+.1f}")
            for role, samples in self._samples.items()
        ]
        requests: dict[str, int] = {}
        for row in self._rows:
            for name, count in row.tally.requests.items():
                requests[name] = requests.get(name, 0) + count
        parts = [
            f"# Soak, {date()}",
            f"{machine()}. Commit {commit()}. {self._options.minutes:g} minutes asked for, "
            f"{self._options.clients} clients, pauses of {self._options.pause:g} s on average.",
            f"    {self._command}\n    python bench/soak.py {' '.join(sys.argv[1:])}",
            traffic_table(self._rows),
            "Each process: own / resident memory in MiB, descriptors, threads.",
            process_table(self._rows),
            "Growth of own memory over the second half of the run, in MiB per hour:",
            table([role for role, _ in growth], [[number for _, number in growth]]),
            "Actions that ended well: "
            + ", ".join(f"{name} {count}" for name, count in sorted(requests.items())),
            _list("Wrong at the end", verdict),
            _list("Processes replaced", self._replaced),
            _list("Failed", self._traffic.failures),
        ]
        self._options.out.write_text("\n\n".join(parts) + "\n")


def _cpu_seconds(usage: dict[str, Sample]) -> float:
    return sum(sample.cpu_seconds for sample in usage.values())


def _list(title: str, lines: list[str]) -> str:
    return f"{title}: " + ("nothing." if not lines else "\n\n" + "\n".join(f"- {line}" for line in lines))


def main() -> None:
    exit_on_sigterm()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", help="a running server of this machine (default: start one)")
    parser.add_argument("--api-key", action="append", default=[], help="a key of that server; repeatable")
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--pause", type=float, default=1.5, help="mean seconds between a client's actions")
    parser.add_argument("--hostile", action="store_true", help="one more client sends the hostile corpus")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("soak.md"))
    options = parser.parse_args()
    options.log = options.out.with_suffix(".log")
    options.out.with_suffix(".jsonl").unlink(missing_ok=True)
    if options.url is not None:
        well = asyncio.run(Soak(options, options.url, server_of(options.url), "(a running server)").run())
    else:
        with tempfile.TemporaryDirectory() as directory:
            keys = [part for key in (*KEYS, HOSTILE_KEY) for part in ("--api-key", key)]
            command = " ".join(["arbora serve", *SERVER, "--disk-cache DIRECTORY,128MiB", *keys])
            with serve_arbora(options.log, *SERVER, "--disk-cache", f"{directory},128MiB", *keys) as server:
                well = asyncio.run(Soak(options, server.url, server.pid, command).run())
    print(options.out.read_text())
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
