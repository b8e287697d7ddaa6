"""Sends many generated and mutated requests to every endpoint of a server and counts the outcomes.

    python bench/fuzz.py --requests 100000 --connections 8 --out fuzz.md

Starts `arbora serve` with the built-in model and a short context, so that a request whose `max_tokens` was
mutated away ends soon. Meanwhile a stream and pings of /health run; their longest silence is reported. The
run fails if a request gets an undocumented answer, a process ends or memory is lost. Equal seeds give equal
requests; `--first` is the number of the first request that is sent.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

import psutil

sys.path += [str(Path(__file__).parent / "lib"), str(Path(__file__).parents[1] / "tests" / "support")]
from canary import Canary
from fuzz_bodies import Case, case
from fuzz_run import Outcome, send_all
from process_figures import MIB, Sample, sample_processes
from reports import commit, date, machine, table
from rest_check import wrong_at_end
from server_process import exit_on_sigterm, main_pids, serve_arbora

PART = 2000
SERVER = ("--dtype", "float32", "--max-model-len", "384", "--kv-memory", "16MiB", "--debug", "invariants")


async def send_in_parts(url: str, cases: list[Case], connections: int, outcome: Outcome) -> None:
    part = await send_all(url, cases, connections)
    outcome.statuses += part.statuses
    outcome.kinds += part.kinds
    outcome.faults += part.faults
    outcome.busy += part.busy
    outcome.slowest = sorted(outcome.slowest + part.slowest, reverse=True)[:10]


def memory_table(before: dict[str, Sample], after: dict[str, Sample]) -> str:
    rows = [
        (
            role,
            before[role].pid if role in before else "–",
            after[role].pid,
            round(before[role].uss / MIB) if role in before else "–",
            round(after[role].uss / MIB),
            before[role].descriptors if role in before else "–",
            after[role].descriptors,
        )
        for role in after
    ]
    headings = ("process", "pid before", "after", "own MiB before", "after", "descriptors before", "after")
    return table(headings, rows)


def report(
    options: argparse.Namespace,
    outcome: Outcome,
    canary: Canary,
    memory: str,
    wrong: list[str],
    seconds: float,
) -> str:
    statuses = table(["status", "answers"], sorted(outcome.statuses.items()))
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(outcome.kinds.items()))
    slowest = table(
        ["seconds", "request"], [(f"{time:.1f}", f"`{text[:90]}`") for time, text in outcome.slowest]
    )
    faults = "\n".join(f"- {fault}" for fault in [*wrong, *canary.faults, *outcome.faults][:50])
    return "\n\n".join(
        [
            f"# Generated requests, {date()}",
            f"{machine()}. Commit {commit()}.",
            f"    python bench/fuzz.py {' '.join(sys.argv[1:])}",
            f"{sum(outcome.statuses.values())} requests answered in {seconds:.0f} s on {options.connections} "
            f"connections, seed {options.seed}: {kinds}.",
            statuses,
            "Asked to come back: " + (str(dict(outcome.busy)) if outcome.busy else "none."),
            f"Beside them {canary.streams} streams of 300 tokens: longest gap {canary.stream_gap:.2f} s; the "
            f"slowest of the /health pings took {canary.ping_gap:.2f} s.",
            memory,
            "The slowest answers:",
            slowest,
            f"Wrong: {len(wrong) + len(canary.faults) + len(outcome.faults)}.\n{faults}",
        ]
    )


def run(options: argparse.Namespace) -> bool:
    server = serve_arbora(options.out.with_suffix(".log"), *SERVER)
    try:
        outcome, started, told = Outcome(), time.monotonic(), 0
        before, pids = sample_processes(server.pid, 0.0), main_pids(server.pid)
        numbers = range(options.first, options.first + options.requests)
        with Canary(server.url) as canary:
            for part in (numbers[start : start + PART] for start in range(0, len(numbers), PART)):
                cases = [case(options.seed, number) for number in part]
                asyncio.run(send_in_parts(server.url, cases, options.connections, outcome))
                print(f"{part[-1] + 1}: {dict(outcome.statuses)}, {len(outcome.faults)} faults", flush=True)
                for fault in outcome.faults[told:]:
                    print(fault, flush=True)
                told = len(outcome.faults)
        seconds = time.monotonic() - started
        wrong = wrong_at_end(server, pids)
        memory = memory_table(before, sample_processes(server.pid, 0.0))
    except psutil.NoSuchProcess:
        raise SystemExit("the server ended") from None
    finally:
        server.stop()
    text = report(options, outcome, canary, memory, wrong, seconds)
    options.out.write_text(text + "\n")
    print(text)
    return not (wrong or outcome.faults or canary.faults)


def main() -> None:
    exit_on_sigterm()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("fuzz.md"))
    sys.exit(0 if run(parser.parse_args()) else 1)


if __name__ == "__main__":
    main()
