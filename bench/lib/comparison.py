"""Tables in Markdown of the visits of `compare.py`: each server's figures, and ratios of ours to theirs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from reports import table

Run = dict[str, Any]


class Visit(NamedTuple):
    """One start of one server, which ran every workload once."""

    server: str
    round: int
    ready_s: float
    resident_mb: int
    idle_cores: float
    runs: dict[str, Run]
    """by workload"""


FIGURES = {
    "requests": "requests",
    "errors": "errors",
    "tokens/s": "tok_per_s",
    "prompt tokens/s": "prompt_tok_per_s",
    "requests/s": "req_per_s",
    "TTFT p50": "ttft_p50",
    "TTFT p90": "ttft_p90",
    "ITL p50": "itl_p50",
    "ITL p99": "itl_p99",
    "ITL p99 ÷ p50": "itl_tail",
    "cached": "cached",
}
RATIOS = {
    title: FIGURES[title]
    for title in ("tokens/s", "prompt tokens/s", "requests/s", "TTFT p50", "ITL p50", "ITL p99")
}


def server_section(visits: Sequence[Visit]) -> str:
    """The medians of one server's visits. Spread is (highest − lowest) ÷ median of its rounds' tokens/s."""
    head = ["workload", *FIGURES, "spread", "other load", "spoilt"]
    rows = [
        [
            workload,
            *(_shown(_median(_values(visits, workload, column))) for column in FIGURES.values()),
            f"{spread(_values(visits, workload, 'tok_per_s')):.0%}",
            f"{max(_values(visits, workload, 'other_load')):.0%}",
            f"{sum(visit.runs[workload]['spoilt'] for visit in visits)} of {len(visits)}",
        ]
        for workload in visits[0].runs
    ]
    ready, memory, idle = (
        _median([getattr(visit, name) for visit in visits])
        for name in ("ready_s", "resident_mb", "idle_cores")
    )
    return (
        f"### {visits[0].server}\n\nReady after {_shown(ready)} s; {_shown(memory)} MB resident after the "
        f"workloads; {_shown(idle)} of a core when idle.\n\n{table(head, rows)}"
    )


def ratio_section(ours: Sequence[Visit], theirs: Sequence[Visit]) -> str:
    """Medians of the rounds' ratios, ours ÷ theirs, with the lowest and the highest round."""
    rows = [
        [workload, *(_ratio(ours, theirs, workload, column) for column in RATIOS.values())]
        for workload in ours[0].runs
    ]
    return f"### {ours[0].server} ÷ {theirs[0].server}\n\n{table(['workload', *RATIOS], rows)}"


def spread(values: Sequence[float]) -> float:
    """(highest − lowest) ÷ median, 0 if nothing was measured."""
    middle = statistics.median(values) if values else 0.0
    return (max(values) - min(values)) / middle if middle else 0.0


def by_server(visits: Sequence[Visit]) -> dict[str, list[Visit]]:
    found: dict[str, list[Visit]] = {}
    for visit in visits:
        found.setdefault(visit.server, []).append(visit)
    return found


def report(visits: Sequence[Visit], is_ours: Callable[[str], bool]) -> str:
    """A section for each server, then one for each pair of ours with a peer."""
    found = by_server(visits)
    ours = [group for name, group in found.items() if is_ours(name)]
    theirs = [group for name, group in found.items() if not is_ours(name)]
    sections = [server_section(group) for group in found.values()]
    sections += [ratio_section(mine, peer) for mine in ours for peer in theirs]
    return "\n\n".join(sections)


def _ratio(ours: Sequence[Visit], theirs: Sequence[Visit], workload: str, column: str) -> str:
    pairs = [
        (mine.runs[workload][column], peer.runs[workload][column])
        for mine, peer in zip(ours, theirs, strict=True)
    ]
    ratios = [mine / peer for mine, peer in pairs if mine and peer]
    if not ratios:
        return "–"
    text = f"{statistics.median(ratios):.2f}"
    return text if len(ratios) == 1 else f"{text} ({min(ratios):.2f}–{max(ratios):.2f})"


def _values(visits: Sequence[Visit], workload: str, column: str) -> list[float]:
    found = (visit.runs[workload][column] for visit in visits)
    return [value for value in found if value is not None]


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:,.4g}" if value < 1000 else f"{value:,.0f}"
