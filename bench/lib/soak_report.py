"""The soak's measurements of a server's processes, and its tables."""

from __future__ import annotations

import platform
import statistics
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from server_process import processes_by_role
from soak_traffic import Tally

MIB = 1 << 20


@dataclass(frozen=True)
class Sample:
    """A process at one time, or all of one kind together. `seconds` are since the soak began; memory is in
    bytes, `pid` that of the first process."""

    seconds: float
    pid: int
    rss: int
    uss: int
    descriptors: int
    threads: int
    cpu_seconds: float
    processes: int = 1

    def __add__(self, other: Sample) -> Sample:
        return Sample(
            self.seconds,
            self.pid,
            self.rss + other.rss,
            self.uss + other.uss,
            self.descriptors + other.descriptors,
            self.threads + other.threads,
            self.cpu_seconds + other.cpu_seconds,
            self.processes + other.processes,
        )


@dataclass(frozen=True)
class Row:
    """One line of the table: what happened up to `minute`, since the line before."""

    minute: float
    tally: Tally
    cpu_share: float
    usage: dict[str, Sample]


def sample_processes(supervisor: int, seconds: float) -> dict[str, Sample]:
    """By role; all processes that compile or follow grammars together, as `worker`."""
    found: dict[str, Sample] = {}
    for role, process in processes_by_role(supervisor).items():
        try:
            with process.oneshot():
                memory, times = process.memory_full_info(), process.cpu_times()
                sample = Sample(
                    seconds,
                    process.pid,
                    memory.rss,
                    memory.uss,
                    process.num_fds(),
                    process.num_threads(),
                    times.user + times.system,
                )
        except psutil.Error:
            continue
        kind = role.split()[0]
        found[kind] = found[kind] + sample if kind in found else sample
    return found


def percentile(values: Sequence[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else 0.0


def slope_per_hour(samples: Sequence[Sample]) -> float:
    """The growth of a process's own memory in MiB per hour, by least squares."""
    if len(samples) < 3:
        return 0.0
    times = [sample.seconds / 3600 for sample in samples]
    return statistics.linear_regression(times, [sample.uss / MIB for sample in samples]).slope


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [list(map(str, headings)), ["---"] * len(headings), *(list(map(str, row)) for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def traffic_table(rows: Sequence[Row]) -> str:
    headings = ("minute", "requests", "output tokens", "refused", "failed", "TTFT p50", "TTFT p99", "CPU")
    return table(
        headings,
        [
            (
                f"{row.minute:.0f}",
                sum(row.tally.requests.values()),
                row.tally.output_tokens,
                sum(row.tally.refused.values()),
                row.tally.failed,
                f"{1000 * percentile(row.tally.ttft, 50):.0f} ms",
                f"{1000 * percentile(row.tally.ttft, 99):.0f} ms",
                f"{100 * row.cpu_share:.0f} %",
            )
            for row in rows
        ],
    )


def process_table(rows: Sequence[Row]) -> str:
    """Own memory (USS) and resident memory (RSS) in MiB, descriptors and threads of each process; of those
    of grammars their number too."""
    roles = list(dict.fromkeys(role for row in rows for role in row.usage))
    return table(("minute", *roles), [(f"{row.minute:.0f}", *_cells(row, roles)) for row in rows])


def _cells(row: Row, roles: Sequence[str]) -> list[str]:
    cells = []
    for role in roles:
        sample = row.usage.get(role)
        if sample is None:
            cells.append("–")
            continue
        memory = f"{sample.uss / MIB:.0f} / {sample.rss / MIB:.0f}"
        several = f", {sample.processes} pr" if role == "worker" else ""
        cells.append(f"{memory}, {sample.descriptors} fd, {sample.threads} th{several}")
    return cells


def machine() -> str:
    name = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    memory = psutil.virtual_memory().total / (1 << 30)
    return f"{name}, {psutil.cpu_count()} logical cores, {memory:.0f} GiB, Python {platform.python_version()}"


def commit() -> str:
    here = Path(__file__).parent
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True)
    return found.stdout.strip() or "unknown"


def date() -> str:
    return time.strftime("%Y-%m-%d")
