"""The soak's tables: its traffic, and the memory of a server's processes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from process_figures import MIB, Sample
from reports import percentile, table
from soak_traffic import Tally


@dataclass(frozen=True)
class Row:
    """One line of the table: what happened up to `minute`, since the line before."""

    minute: float
    tally: Tally
    cpu_share: float
    usage: dict[str, Sample]


def slope_per_hour(samples: Sequence[Sample]) -> float:
    """The growth of a process's own memory in MiB per hour, by least squares."""
    if len(samples) < 3:
        return 0.0
    times = [sample.seconds / 3600 for sample in samples]
    return statistics.linear_regression(times, [sample.uss / MIB for sample in samples]).slope


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
